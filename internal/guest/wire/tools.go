package wire

// The operations that tools need beyond reading and writing.
const (
	OpEdit   Op = "edit"   // EditRequest → EditReply: read, replace, and write whole, in one operation
	OpGlob   Op = "glob"   // GlobRequest → GlobReply
	OpSearch Op = "search" // SearchRequest → SearchReply
)

// Limits of those operations.
const (
	MaxEditBytes   = 10 << 20 // a file that is edited
	MaxMatches     = 1000     // of a search or a glob, unless asked for less
	MaxLineBytes   = 1024     // of a line that a search shows; the rest is cut
	MaxSearchBytes = 64 << 20 // of one file that a search looks at
	MaxWalk        = 200_000  // entries that a glob or a search looks at
)

// EditRequest replaces Old by New in a text file. Without All, Old must be there
// exactly once.
type EditRequest struct {
	FileRequest
	Old string `json:"old"`
	New string `json:"new"`
	All bool   `json:"all,omitempty"`
}

// EditReply says what was replaced.
type EditReply struct {
	Count int      `json:"count"`
	Line  int      `json:"line"` // of the first one, from 1
	Info  FileInfo `json:"info"`
}

// GlobRequest lists files and folders below Path whose path relative to it
// matches Pattern: *, ?, [class], {a,b}, ** for any number of folders, and \
// before a character that stands for itself. Links are listed, not followed. A
// name that begins with a dot needs Hidden, or a dot in the pattern.
type GlobRequest struct {
	FileRequest
	Pattern string `json:"pattern"`
	Hidden  bool   `json:"hidden,omitempty"` // also names that begin with a dot
	Max     int    `json:"max,omitempty"`    // 0, and at most: MaxMatches
}

// GlobReply lists what was found, sorted by path. Truncated: there is more, or
// there may be, as not everything was looked at.
type GlobReply struct {
	Items     []FileInfo `json:"items"`
	Truncated bool       `json:"truncated"`
}

// SearchRequest looks for a regular expression (RE2) in the lines of the files
// below Path, or of the file Path. Links below Path are not followed.
type SearchRequest struct {
	FileRequest
	Pattern    string `json:"pattern"`
	Literal    bool   `json:"literal,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	// Glob bounds it to files that match; without a slash it is about their
	// names, in any folder. Hidden takes names with a dot too.
	Glob   string `json:"glob,omitempty"`
	Hidden bool   `json:"hidden,omitempty"`
	// Before and After are lines of context, at most 10 each.
	Before int `json:"before,omitempty"`
	After  int `json:"after,omitempty"`
	Max    int `json:"max,omitempty"` // 0, and at most: MaxMatches
}

// SearchReply lists the matches by path and line. Files that hold a NUL byte, or
// cannot be read, are skipped, and counted. Truncated: there is more, or there
// may be, as not everything was looked at: files longer than MaxSearchBytes, lines
// longer than some 64 KiB to 1 MiB, trees larger than MaxWalk.
type SearchReply struct {
	Matches   []Match `json:"matches"`
	Files     int     `json:"files"` // looked at
	Skipped   int     `json:"skipped"`
	Truncated bool    `json:"truncated"`
}

// Match is a line that matches.
type Match struct {
	Path   string   `json:"path"`
	Line   int      `json:"line"`   // from 1
	Column int      `json:"column"` // from 1, in bytes
	Text   string   `json:"text"`
	Before []string `json:"before,omitempty"`
	After  []string `json:"after,omitempty"`
}
