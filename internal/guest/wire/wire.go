// Package wire is what host and guest say to each other on one byte stream:
// one request, and its answer in frames. It holds types, limits and the codec,
// no behaviour.
//
// Each side treats the other's bytes as foreign: a header, a frame, a count or
// a time that is over its limit ends the stream with an error, never the
// process. A stream carries one request only, so a kill or a ping never queues
// behind output.
//
// The host writes one frame of kind Request (JSON), then what the operation
// asks for; the guest answers with frames and ends with exactly one of kind
// Reply or Failure. A stream that breaks before that has no result.
package wire

import (
	"encoding/json"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Version is sent by both sides in the first frame; a guest that speaks
// another one is refused and its sandbox replaced.
const Version = 1

// Places inside a sandbox.
const (
	// RunDir is the folder that the host gives read-only: mode 0700, so that
	// no command gets at what is in it.
	RunDir = runtime.RunDir
	// GuestPath, HostSocket and CgroupDir are in RunDir.
	GuestPath  = runtime.GuestPath
	HostSocket = RunDir + "/host.sock"
	CgroupDir  = RunDir + "/cgroup"
	// Workspace is where a bound workspace appears, or scratch space.
	Workspace = runtime.WorkspaceDir
	// Tmp is the other folder whose files are served.
	Tmp = "/tmp"
	// Home is the commands' home directory, a tmpfs of theirs.
	Home = runtime.HomeDir
	// PrivateDir is the guest's own folder on a tmpfs, root only: its socket
	// for bridges is in it.
	PrivateDir = "/run/guest"
)

// Limits of the protocol.
const (
	MaxFrame     = 256 << 10 // payload of a data frame
	MaxHeader    = 1 << 20   // payload of Request, Reply and Failure
	MaxArgs      = 4096      // elements of argv and env
	MaxArgBytes  = 512 << 10 // argv and env together
	MaxPathBytes = 4096
	MaxShells    = 64 // shells a sandbox keeps, ended ones too, until forgotten
	MaxEntries   = 10_000
	MaxAlias     = 16

	// MinCommandMemory in bytes and MinCommandCPUs are the least that a command
	// can have for itself.
	MinCommandMemory = 4 << 20
	MinCommandCPUs   = 0.01

	// SpoolBytes is what the guest keeps of a shell's output per stream unless
	// asked otherwise, SpoolTotal what it keeps of all shells together.
	SpoolBytes = 1 << 20
	SpoolTotal = 16 << 20

	// HeaderTime is how long either side waits for a header that is due.
	HeaderTime = 10 * time.Second
	// DrainTime is how long output is still read after the leader has ended
	// and everything else of the command was killed.
	DrainTime = 2 * time.Second
)

// Kind is the first byte of a frame; a big-endian uint32 length and the
// payload follow.
type Kind byte

const (
	KindRequest Kind = 'Q' // host → guest: Request
	KindReply   Kind = 'R' // guest → host: the operation's reply; last frame
	KindFailure Kind = 'F' // guest → host: Failure; last frame
	KindStarted Kind = 'S' // guest → host: Started
	KindStdout  Kind = '1' // guest → host
	KindStderr  Kind = '2' // guest → host
	KindStdin   Kind = '0' // host → guest: input or file data
	KindEOF     Kind = 'E' // host → guest: end of input; guest → host: end of a stream's data
	KindSignal  Kind = 'K' // host → guest: Signal
	KindData    Kind = 'D' // guest → host: file data, spooled output
	KindChunk   Kind = 'C' // guest → host: Chunk, says where the KindData after it stands
)

// Op names an operation.
type Op string

const (
	OpPing   Op = "ping"   // → Pong
	OpClaim  Op = "claim"  // Claim → {}: binds the sandbox to a lease
	OpExec   Op = "exec"   // Command; Stdin/EOF/Signal → Started, Stdout/Stderr …, Reply(Result). A stream that breaks kills it.
	OpStart  Op = "start"  // Command → Shell: as exec, in the background
	OpShells Op = "shells" // → []Shell
	OpShell  Op = "shell"  // ShellRef → Shell
	OpOutput Op = "output" // Output → (Chunk Data)* Reply(OutputEnd)
	OpInput  Op = "input"  // ShellRef; Stdin*, EOF closes the shell's stdin, or the stream's end leaves it open → {}
	OpSignal Op = "signal" // Signal → {}
	OpKill   Op = "kill"   // Kill → Shell: returns when nothing of it lives
	OpForget Op = "forget" // ShellRef → {}: an ended shell and its output are dropped
	OpRead   Op = "read"   // FileRequest → Started(FileInfo), Data*, Reply(FileInfo)
	OpWrite  Op = "write"  // FileRequest; Stdin*, EOF → Reply(FileInfo): atomic, the old content stays unless all arrived
	OpList   Op = "list"   // FileRequest → Listing
	OpStat   Op = "stat"   // FileRequest → FileInfo
	OpMkdir  Op = "mkdir"  // FileRequest → FileInfo: with parents
	OpMove   Op = "move"   // FileRequest (To) → FileInfo
	OpRemove Op = "remove" // FileRequest (Recursive) → {}
	OpEnd    Op = "end"    // → {}: kills every command and ends PID 1
)

// Request is the first frame of a stream.
type Request struct {
	Version int             `json:"v"`
	Op      Op              `json:"op"`
	Body    json.RawMessage `json:"body,omitempty"`
}

// Code is a class of containerd/errdefs in snake case.
type Code = string

// The codes that a guest sends.
const (
	InvalidArgument    Code = "invalid_argument"
	NotFound           Code = "not_found"
	AlreadyExists      Code = "already_exists"
	FailedPrecondition Code = "failed_precondition"
	ResourceExhausted  Code = "resource_exhausted"
	PermissionDenied   Code = "permission_denied"
	Unavailable        Code = "unavailable"
	Internal           Code = "internal"
)

// Failure is an operation that was not carried out, and the error that says so
// within the guest.
type Failure struct {
	Code    Code   `json:"code"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// Pong is the answer to a ping.
type Pong struct {
	Version int `json:"version"`
	// Kill is how commands are killed here: "cgroup" or "tag".
	Kill     string `json:"kill"`
	Claimed  bool   `json:"claimed"`
	Commands int    `json:"commands"` // running, shells included
	// Warm are those of them that run since before the sandbox was claimed.
	Warm     int   `json:"warm,omitempty"`
	Shells   int   `json:"shells"`
	UptimeMS int64 `json:"uptime_ms"`
	RSSBytes int64 `json:"rss_bytes"`
}

// Claim binds a warm sandbox to its lease, once.
type Claim struct {
	// Lease is the lease's id; a second claim with another id is refused.
	Lease string `json:"lease"`
	// Env is in every command's environment, before the command's own.
	Env map[string]string `json:"env,omitempty"`
	// Alias are further names of folders below Workspace, as links that the
	// guest makes: "/home/user/projects": "/workspace". Each must be below Home,
	// and not below another. A name that is taken, or cannot be made, refuses
	// the claim. Operations on files take these names as well.
	Alias map[string]string `json:"alias,omitempty"`
}

// Command is what to run.
type Command struct {
	// ID is chosen by the host, unique in the sandbox; starting the same id
	// again answers with what runs already.
	ID   string            `json:"id"`
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env,omitempty"`
	// Cwd is absolute, or relative to /workspace; empty is /workspace.
	Cwd string `json:"cwd,omitempty"`
	// Dirs, if set, are absolute folders: Cwd is refused, PermissionDenied,
	// where it leads out of all of them, by links or by "..".
	Dirs []string `json:"dirs,omitempty"`
	// User is "" (1000:1000), a name of the image's /etc/passwd, "uid" or
	// "uid:gid". Uid 0 is refused.
	User string `json:"user,omitempty"`
	// Timeout ends the command and everything it started. Zero: none.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	// Stdin says that input will come; without it stdin is /dev/null.
	Stdin bool `json:"stdin,omitempty"`
	// OutputLimit ends the command with output_limit once stdout or stderr has
	// more bytes. Zero: no limit.
	OutputLimit int64 `json:"output_limit,omitempty"`
	// MergeStderr puts stderr into stdout, in the order of writing.
	MergeStderr bool `json:"merge_stderr,omitempty"`
	// Spool and Wait are for shells. Spool is how many bytes are kept per
	// stream (0: SpoolBytes). When they are used up, the oldest are dropped
	// and their reader gets a gap; with Wait the command waits instead until
	// a reader has asked for what comes after them.
	Spool int64 `json:"spool,omitempty"`
	Wait  bool  `json:"wait,omitempty"`
	// Check, if set, is decided on by the guest before anything runs: the
	// second decision on an argument vector. What it refuses is a Failure of
	// code PermissionDenied and field "argv". Such a command must be a program
	// of the image, not one from a folder that commands can write to, and has of
	// the environment only what names a language, a time zone or a terminal, and
	// PATH: other variables make harmless programs run others.
	Check *argv.Rules `json:"check,omitempty"`
	// MemoryBytes and CPUs bound this command alone, with all that it starts,
	// below what all commands may have. Zero: no bound of its own; else at least
	// MinCommandMemory and MinCommandCPUs. Where the guest cannot set them it
	// refuses the command, FailedPrecondition.
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	// Program, if set, is one of the guest's own programs instead of one of the
	// sandbox: it gets Argv as its arguments, and is run as any command is.
	Program string `json:"program,omitempty"`
	// TTY, if set, runs a shell's command on a pseudo terminal, see there.
	TTY *TTY `json:"tty,omitempty"`
}

// Started says that the leader was executed, or that the stream carries a
// connection.
type Started struct {
	ID  string `json:"id"`
	Pid int    `json:"pid"` // in the sandbox's pid namespace
	// Beside is how many connections are carried besides this one: either side
	// keeps less of each where there are many.
	Beside int `json:"beside,omitempty"`
}

// Stream is "stdout" or "stderr".
type Stream string

const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Shell is the state of a background command.
type Shell struct {
	ID        string    `json:"id"`
	Argv      []string  `json:"argv"`
	StartedAt time.Time `json:"started_at"`
	// Result is there once it has ended.
	Result *runtime.Result `json:"result,omitempty"`
	Stdout Span            `json:"stdout"`
	Stderr Span            `json:"stderr"`
	// TTY is there for those on a terminal, with the size that it has now.
	TTY *TTY `json:"tty,omitempty"`
}

// Span is what the spool holds of a stream: the bytes from Start to End, as
// absolute offsets from the stream's first byte.
type Span struct {
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// ShellRef names a shell.
type ShellRef struct {
	ID string `json:"id"`
}

// Output asks for a shell's output from an absolute offset. Asking for Offset
// also says that everything before it has been read (see Command.Wait).
type Output struct {
	ID     string `json:"id"`
	Stream Stream `json:"stream"`
	Offset int64  `json:"offset"`
	// Limit is how many bytes to send at most. Zero: what is there. Follow
	// goes on until the stream's end instead, and ignores Limit and Wait.
	Limit  int64 `json:"limit,omitempty"`
	Follow bool  `json:"follow,omitempty"`
	// Wait is how long to wait for a first byte, at most a minute.
	Wait time.Duration `json:"wait_ns,omitempty"`
}

// Chunk says where the data frame after it stands. A chunk whose Offset is
// greater than where the last one ended tells the exact gap.
type Chunk struct {
	Offset int64 `json:"offset"`
}

// OutputEnd ends an answer to Output.
type OutputEnd struct {
	// Next is the offset to ask for next.
	Next int64 `json:"next"`
	// EOF: the stream has ended and Next is its length.
	EOF   bool  `json:"eof"`
	Shell Shell `json:"shell"`
}

// Signal goes to the leader, or to every process of the command.
type Signal struct {
	ID     string `json:"id,omitempty"`
	Number int    `json:"number"`
	All    bool   `json:"all,omitempty"`
}

// Kill ends a shell: TERM to all, Grace, then KILL.
type Kill struct {
	ID    string        `json:"id"`
	Grace time.Duration `json:"grace_ns,omitempty"`
}

// FileRequest names a file below /workspace, absolute or relative to it, or one
// below /tmp, absolute. What leaves the one or the other, by .. or by a symbolic
// link, is refused. Everything is done as the commands' user.
type FileRequest struct {
	Path string `json:"path"`
	To   string `json:"to,omitempty"`
	// Offset and Limit are for read; Limit zero reads to the end.
	Offset    int64  `json:"offset,omitempty"`
	Limit     int64  `json:"limit,omitempty"`
	Mode      uint32 `json:"mode,omitempty"` // permission bits for write and mkdir; 0: 0644, 0755
	Recursive bool   `json:"recursive,omitempty"`
	// Size, if not zero, is how many bytes write expects; others are an error.
	Size int64 `json:"size,omitempty"`
	// NoFollow refuses symbolic links in any part of the path, the last one too:
	// PermissionDenied. Without it they are followed within the folder.
	NoFollow bool `json:"no_follow,omitempty"`
}

// FileInfo describes a file without following a link in its last part.
type FileInfo struct {
	Name    string    `json:"name"`
	Path    string    `json:"path"` // relative to /workspace, "." for itself; below /tmp absolute
	Type    string    `json:"type"` // "file", "dir", "symlink", "other"
	Size    int64     `json:"size"`
	Mode    uint32    `json:"mode"`
	UID     uint32    `json:"uid"`
	GID     uint32    `json:"gid"`
	ModTime time.Time `json:"mod_time"`
	Target  string    `json:"target,omitempty"`
}

// Listing is a folder's entries, sorted by name; Truncated if there are more
// than MaxEntries.
type Listing struct {
	Items     []FileInfo `json:"items"`
	Truncated bool       `json:"truncated"`
}
