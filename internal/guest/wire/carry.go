package wire

// Operations that transfer a whole workspace, for sandboxes into which none can be mounted.
const (
	OpUnpack Op = "unpack" // Carry; Stdin*, EOF → Reply(Carried): a stream of package filesync becomes files in Workspace
	OpPack   Op = "pack"   // Carry → Data*, Reply(Carried): the reverse
)

// Carry configures a transfer.
type Carry struct {
	// MaxBytes bounds the total size of all files.
	MaxBytes int64 `json:"max_bytes"`
	// ReadOnly (unpack) makes files without write permission.
	ReadOnly bool `json:"read_only,omitempty"`
	// Whole (pack) includes files that have not changed since they were unpacked.
	Whole bool `json:"whole,omitempty"`
}

// Carried counts what was transferred. Kept counts unchanged files that were not sent.
type Carried struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	Kept    int   `json:"kept,omitempty"`
}
