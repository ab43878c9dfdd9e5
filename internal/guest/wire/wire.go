// Package wire defines the protocol between host and guest on one byte stream: one request, then
// its answer in frames. It contains types, limits and the codec.
//
// Each side treats the other's bytes as untrusted. A header, frame, count or time over its limit
// ends the stream with an error and never the process. A stream carries one request only, so a kill
// or a ping never waits behind output.
//
// The host writes one frame of kind Request (JSON), then any data that the operation needs. The
// guest answers with frames and ends with exactly one of kind Reply or Failure. A stream that
// breaks before that has no result.
package wire

import (
	"encoding/json"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Version is sent by both sides in the first frame. The host rejects a guest with another version
// and replaces its sandbox.
const Version = 1

// Places inside a sandbox.
const (
	// RunDir is the directory that the host shares read-only. Its mode is 0700, so commands cannot
	// reach its content.
	RunDir = runtime.RunDir
	// GuestPath, HostSocket and CgroupDir are in RunDir.
	GuestPath  = runtime.GuestPath
	HostSocket = RunDir + "/host.sock"
	CgroupDir  = RunDir + "/cgroup"
	// Workspace is where a bound workspace appears, or temporary space.
	Workspace = runtime.WorkspaceDir
	// Tmp is the other directory whose files are served.
	Tmp = "/tmp"
	// Home is the commands' home directory, a tmpfs of theirs.
	Home = runtime.HomeDir
	// PrivateDir is the guest's own directory on a tmpfs, accessible to root only. It contains the
	// socket for bridges.
	PrivateDir = "/run/guest"
)

// BridgeCommand returns the command of a bridge: it connects its stdin and stdout to the guest.
// Guests of builds without resumable streams answer it with their usage.
func BridgeCommand() []string { return []string{GuestPath, "bridge", "--line"} }

// Limits of the protocol.
const (
	MaxFrame     = 256 << 10 // payload of a data frame
	MaxHeader    = 1 << 20   // payload of Request, Reply and Failure
	MaxArgs      = 4096      // elements of argv and env
	MaxArgBytes  = 512 << 10 // argv and env together
	MaxPathBytes = 4096
	MaxShells    = 64 // shells that a sandbox keeps until they are forgotten, including ended ones
	MaxEntries   = 10_000
	MaxAlias     = 16

	// MinCommandMemory (bytes) and MinCommandCPUs are the smallest caps of a single command.
	MinCommandMemory = 4 << 20
	MinCommandCPUs   = 0.01

	// SpoolBytes is the default size of the output buffer per stream of a shell. SpoolTotal bounds
	// the buffers of all shells together.
	SpoolBytes = 1 << 20
	SpoolTotal = 16 << 20

	// HeaderTime is how long either side waits for an expected header.
	HeaderTime = 10 * time.Second
	// DrainTime is how long output is still read after the first process has ended and all other
	// processes of the command were killed.
	DrainTime = 2 * time.Second
)

// Kind is the first byte of a frame. A big-endian uint32 length and the payload follow.
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
	KindChunk   Kind = 'C' // guest → host: Chunk, the offset of the next KindData
)

// Op names an operation.
type Op string

const (
	OpPing   Op = "ping"   // → Pong
	OpClaim  Op = "claim"  // Claim → {}: binds the sandbox to a lease
	OpExec   Op = "exec"   // Command; Stdin/EOF/Signal → Started, Stdout/Stderr …, Reply(Result); a broken stream kills it
	OpStart  Op = "start"  // Command → Shell: as exec, in the background
	OpShells Op = "shells" // → []Shell
	OpShell  Op = "shell"  // ShellRef → Shell
	OpOutput Op = "output" // Output → (Chunk Data)* Reply(OutputEnd)
	OpInput  Op = "input"  // ShellRef; Stdin* → {}: EOF closes the shell's stdin, the end of the stream leaves it open
	OpSignal Op = "signal" // Signal → {}
	OpKill   Op = "kill"   // Kill → Shell: returns once all processes are dead
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

// FieldEpoch is the field of a Failure for a request whose epoch is too low.
const FieldEpoch = "epoch"

// Request is the first frame of a stream.
type Request struct {
	Version int `json:"v"`
	Op      Op  `json:"op"`
	// Epoch identifies the host. The guest refuses requests with a lower one than the highest it has
	// seen, and ends those under way. Zero: the host has none. Pings without one are always answered.
	Epoch int64           `json:"epoch,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
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

// Failure reports why an operation was rejected or failed. It is also the error type within the
// guest.
type Failure struct {
	Code    Code   `json:"code"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// Pong is the answer to a ping.
type Pong struct {
	Version int `json:"version"`
	// Kill is how commands are killed: "cgroup" or "tag".
	Kill     string `json:"kill"`
	Claimed  bool   `json:"claimed"`
	Commands int    `json:"commands"` // running, shells included
	// Warm counts those that were started before the sandbox was claimed.
	Warm     int   `json:"warm,omitempty"`
	Shells   int   `json:"shells"`
	UptimeMS int64 `json:"uptime_ms"`
	RSSBytes int64 `json:"rss_bytes"`
}

// Claim binds a warm sandbox to its lease.
type Claim struct {
	// Lease is the lease's id. A second claim with another id is rejected.
	Lease string `json:"lease"`
	// Env is in every command's environment. The command's own variables override it.
	Env map[string]string `json:"env,omitempty"`
	// Alias maps additional names to directories below Workspace, for example "/home/user/projects"
	// to "/workspace". The guest makes links for them. Each name must be below Home and not below
	// another name. The claim fails if a name is taken or cannot be made. File operations accept
	// these names too.
	Alias map[string]string `json:"alias,omitempty"`
}

// Command describes a command to run.
type Command struct {
	// ID is chosen by the host and unique in the sandbox. Starting a running id again returns the
	// existing command.
	ID   string            `json:"id"`
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env,omitempty"`
	// Cwd is absolute, or relative to /workspace. Empty means /workspace.
	Cwd string `json:"cwd,omitempty"`
	// Dirs, if set, are absolute directories. A Cwd that resolves to a path outside all of them is
	// rejected with PermissionDenied.
	Dirs []string `json:"dirs,omitempty"`
	// User is "" (1000:1000), a name from the image's /etc/passwd, "uid" or "uid:gid". Uid 0 is
	// rejected.
	User string `json:"user,omitempty"`
	// Timeout ends the command and all its processes. Zero means none.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	// Stdin announces input. Without it stdin is /dev/null.
	Stdin bool `json:"stdin,omitempty"`
	// OutputLimit ends the command with output_limit once stdout or stderr exceeds this many bytes.
	// Zero means no limit.
	OutputLimit int64 `json:"output_limit,omitempty"`
	// MergeStderr sends stderr to stdout, in the order of writing.
	MergeStderr bool `json:"merge_stderr,omitempty"`
	// Spool and Wait are for shells. Spool is the number of bytes kept per stream (0: SpoolBytes).
	// When it is full, the oldest bytes are dropped and the reader sees a gap. With Wait, the
	// command instead blocks until a reader asks for the bytes after them.
	Spool int64 `json:"spool,omitempty"`
	Wait  bool  `json:"wait,omitempty"`
	// Check, if set, makes the guest check the argument vector again before the command runs. It
	// rejects a command with a Failure of code PermissionDenied and field "argv". The program must
	// belong to the image and not be in a directory that commands can write to. The environment is
	// limited to PATH and variables for language, time zone and terminal, because others can make
	// harmless programs run other ones.
	Check *argv.Rules `json:"check,omitempty"`
	// MemoryBytes and CPUs cap this command and its children, within the caps of all commands. Zero
	// means no cap; otherwise they must be at least MinCommandMemory and MinCommandCPUs. If the
	// guest cannot set them, it rejects the command with FailedPrecondition.
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	// Program, if set, names one of the guest's own programs to run instead of one of the sandbox.
	// Argv are its arguments.
	Program string `json:"program,omitempty"`
	// TTY, if set, runs a shell's command on a pseudo-terminal.
	TTY *TTY `json:"tty,omitempty"`
}

// Started reports that the command was executed, or that the stream carries a connection.
type Started struct {
	ID  string `json:"id"`
	Pid int    `json:"pid"` // in the sandbox's pid namespace
	// Beside is the number of other connections being carried. Both sides buffer less per
	// connection if there are many.
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
	// Result is set once it has ended.
	Result *runtime.Result `json:"result,omitempty"`
	Stdout Span            `json:"stdout"`
	Stderr Span            `json:"stderr"`
	// TTY is set for a command on a terminal, with its current size.
	TTY *TTY `json:"tty,omitempty"`
}

// Span is the range of bytes in the spool of a stream, from Start to End, as absolute offsets from
// the stream's first byte.
type Span struct {
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// ShellRef names a shell.
type ShellRef struct {
	ID string `json:"id"`
}

// Output requests a shell's output from an absolute offset. Offset also acknowledges that
// everything before it was read, see Command.Wait.
type Output struct {
	ID     string `json:"id"`
	Stream Stream `json:"stream"`
	Offset int64  `json:"offset"`
	// Limit is the maximum number of bytes to send. Zero means all available ones. Follow continues
	// until the stream's end and ignores Limit and Wait.
	Limit  int64 `json:"limit,omitempty"`
	Follow bool  `json:"follow,omitempty"`
	// Wait is how long to wait for the first byte, at most a minute.
	Wait time.Duration `json:"wait_ns,omitempty"`
}

// Chunk has the offset of the next data frame. An Offset greater than the end of the previous chunk
// shows the exact gap.
type Chunk struct {
	Offset int64 `json:"offset"`
}

// OutputEnd ends an answer to Output.
type OutputEnd struct {
	// Next is the next offset to request.
	Next int64 `json:"next"`
	// EOF reports that the stream has ended and Next is its length.
	EOF   bool  `json:"eof"`
	Shell Shell `json:"shell"`
}

// Signal goes to the first process, or to every process of the command.
type Signal struct {
	ID     string `json:"id,omitempty"`
	Number int    `json:"number"`
	All    bool   `json:"all,omitempty"`
}

// Kill ends a shell: TERM to all processes, Grace, then KILL.
type Kill struct {
	ID    string        `json:"id"`
	Grace time.Duration `json:"grace_ns,omitempty"`
}

// FileRequest names a file below /workspace, absolute or relative to it, or one below /tmp,
// absolute. A path that leaves these directories through .. or a symbolic link is rejected.
// Operations run as the commands' user.
type FileRequest struct {
	Path string `json:"path"`
	To   string `json:"to,omitempty"`
	// Offset and Limit are for read; Limit zero reads to the end.
	Offset    int64  `json:"offset,omitempty"`
	Limit     int64  `json:"limit,omitempty"`
	Mode      uint32 `json:"mode,omitempty"` // permission bits for write and mkdir; 0: 0644, 0755
	Recursive bool   `json:"recursive,omitempty"`
	// Size, if not zero, is the exact number of bytes that a write must have.
	Size int64 `json:"size,omitempty"`
	// NoFollow rejects symbolic links in every part of the path, including the last one, with
	// PermissionDenied. Without it, links are followed within the directory.
	NoFollow bool `json:"no_follow,omitempty"`
}

// FileInfo describes a file. It does not follow a link in the last part of the path.
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

// Listing has a directory's entries, sorted by name. Truncated is set if there are more than
// MaxEntries.
type Listing struct {
	Items     []FileInfo `json:"items"`
	Truncated bool       `json:"truncated"`
}
