package argv

import "maps"

// ReadOnly returns rules for a read-only system: 23 programs, each with the arguments refused that
// would write, run a program or read outside root. Callers must not modify the lists in it.
func ReadOnly(root string) Rules {
	return Rules{Root: root, Programs: maps.Clone(readOnlyPrograms)}
}

var readOnlyPrograms = map[string]Program{
	"awk": {
		Operands:   PatternFirst,
		Script:     "awk",
		FlagsFirst: true,
		DenyFlags: []string{
			"-f", "--file", "-E", "--exec", "-i", "--include", "-l", "--load", "-W", "-o", "--pretty-print",
			"-p", "--profile", "-d", "--dump-variables",
			"-D", "--debug",
		},
		ValueFlags:   []string{"-F", "--field-separator", "-v", "--assign", "-e", "--source"},
		PatternFlags: []string{"-e", "--source"},
	},
	"cat": {},
	"cut": {
		ValueFlags: []string{"-b", "--bytes", "-c", "--characters", "-d", "--delimiter", "-f", "--fields",
			"--output-delimiter"},
	},
	"date": {
		Operands:   Text,
		DenyFlags:  []string{"-s", "--set", "-f", "--file"},
		ValueFlags: []string{"-d", "--date", "--rfc-3339"},
		PathFlags:  []string{"-r", "--reference"},
	},
	"diff": {
		FilesOnly: true,
		DenyFlags: []string{"-l", "--paginate", "-r", "--recursive", "--from-file", "--to-file",
			"-X", "--exclude-from"},
		ValueFlags: []string{
			"-C", "-U", "-D", "--ifdef", "-F", "--show-function-line", "-I", "--ignore-matching-lines", "-L",
			"--label", "-S",
			"--starting-file", "-W", "--width", "-x", "--exclude", "--old-line-format", "--new-line-format",
			"--unchanged-line-format", "--line-format",
			"--old-group-format", "--new-group-format", "--unchanged-group-format", "--changed-group-format",
			"--tabsize", "--horizon-lines",
			"--palette",
		},
	},
	"env": {
		Operands:   Assignments,
		FlagsFirst: true,
		DenyFlags:  []string{"-S", "--split-string", "-C", "--chdir", "-P"},
		ValueFlags: []string{"-u", "--unset"},
	},
	"file": {
		DenyFlags: []string{"-m", "--magic-file", "-M", "-C", "--compile", "-f", "--files-from",
			"-z", "--uncompress", "-Z", "--uncompress-noreport"},
		ValueFlags: []string{"-e", "--exclude", "--exclude-quiet", "-F", "--separator", "-P", "--parameter"},
	},
	"find": {
		SingleDash: true,
		DenyFlags: []string{"-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprint0", "-fprintf",
			"-fls", "-files0-from", "-L", "-follow", "-f", "-D*"},
		ValueFlags: []string{
			"-amin", "-atime", "-cmin", "-ctime", "-mmin", "-mtime", "-used", "-Bmin", "-Btime", "-context",
			"-fstype", "-gid", "-group", "-ilname",
			"-iname", "-inum", "-ipath", "-iregex", "-iwholename", "-links", "-lname", "-maxdepth", "-mindepth",
			"-name", "-path", "-perm", "-printf",
			"-regex", "-regextype", "-size", "-type", "-uid", "-user", "-wholename", "-xtype", "-flags",
		},
		PathFlags: []string{"-newer*", "-anewer", "-cnewer", "-samefile"},
	},
	"grep": {
		Operands:  PatternFirst,
		DenyFlags: []string{"-R", "--dereference-recursive"},
		ValueFlags: []string{
			"-A", "--after-context", "-B", "--before-context", "-C", "--context", "-D", "--devices", "-d",
			"--directories", "-e", "--regexp", "-m",
			"--max-count", "--binary-files", "--exclude", "--exclude-dir", "--include", "--label",
			"--group-separator",
		},
		PathFlags:    []string{"-f", "--file", "--exclude-from"},
		PatternFlags: []string{"-e", "--regexp", "-f", "--file"},
	},
	"head": {
		ValueFlags: []string{"-c", "--bytes", "-n", "--lines"},
	},
	"less": {
		FlagsFirst:   true,
		DenyOperands: []string{"+"},
		DenyFlags: []string{"-o", "-O", "--log-file", "--LOG-FILE", "-k", "--lesskey-file", "--lesskey-src",
			"--lesskey-content", "-t", "--tag", "-T", "--tag-file"},
		ValueFlags: []string{"-D", "--color", "-p", "--pattern", "-P", "--prompt"},
	},
	"ls": {
		DenyFlags: []string{"-L", "--dereference"},
		ValueFlags: []string{
			"-I", "--ignore", "-T", "--tabsize", "-w", "--width", "--block-size", "--format",
			"--hide", "--indicator-style",
			"--quoting-style", "--sort", "--time", "--time-style",
		},
	},
	"pwd": {
		Operands: None,
	},
	"rg": {
		Operands: PatternFirst,
		DenyFlags: []string{"--pre", "--pre-glob", "--hostname-bin", "-z", "--search-zip", "-L", "--follow",
			"--ignore-file", "--debug", "--trace"},
		ValueFlags: []string{
			"-A", "--after-context", "-B", "--before-context", "-C", "--context", "--color", "--colors",
			"--context-separator", "-d", "--max-depth",
			"--maxdepth", "--dfa-size-limit", "-E", "--encoding", "--engine", "-e", "--regexp",
			"--field-context-separator", "--field-match-separator",
			"-g", "--glob", "--iglob", "--hyperlink-format", "-j", "--threads", "-M", "--max-columns", "-m",
			"--max-count", "--max-filesize",
			"--path-separator", "--regex-size-limit", "-r", "--replace", "--sort", "--sortr", "-t", "--type",
			"-T", "--type-not", "--type-add",
			"--type-clear", "--generate",
		},
		PathFlags:    []string{"-f", "--file"},
		PatternFlags: []string{"-e", "--regexp", "-f", "--file", "--files", "--type-list"},
	},
	"sed": {
		Operands:     PatternFirst,
		Script:       "sed",
		DenyFlags:    []string{"-i", "--in-place", "-f", "--file", "-I"},
		ValueFlags:   []string{"-e", "--expression", "-l", "--line-length"},
		PatternFlags: []string{"-e", "--expression"},
	},
	"sort": {
		DenyFlags: []string{"-o", "--output", "--compress-program", "-T", "--temporary-directory", "--files0-from",
			"--random-source"},
		ValueFlags: []string{"-k", "--key", "-S", "--buffer-size", "-t", "--field-separator", "--batch-size",
			"--parallel", "--sort"},
	},
	"stat": {
		ValueFlags: []string{"-c", "--format", "--printf", "--cached"},
	},
	"tail": {
		ValueFlags: []string{"-c", "--bytes", "-n", "--lines", "--max-unchanged-stats", "--pid",
			"-s", "--sleep-interval"},
	},
	"tr": {
		Operands: Text,
	},
	"uniq": {
		MaxOperands: 1,
		ValueFlags:  []string{"-f", "--skip-fields", "-s", "--skip-chars", "-w", "--check-chars"},
	},
	"wc": {
		DenyFlags:  []string{"--files0-from"},
		ValueFlags: []string{"--total"},
	},
	"which": {
		Operands: Text,
	},
	"whoami": {
		Operands: None,
	},
}
