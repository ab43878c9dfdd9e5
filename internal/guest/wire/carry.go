package wire

// Operations on the whole workspace of a sandbox in which none can be mounted.
const (
	OpUnpack Op = "unpack" // Carry; Stdin*, EOF → Reply(Carried): a stream of package carry becomes files in Workspace
	OpPack   Op = "pack"   // Carry → Data*, Reply(Carried): and back
)

// Carry says how files are carried.
type Carry struct {
	// MaxBytes bounds all files together.
	MaxBytes int64 `json:"max_bytes"`
	// ReadOnly (unpack): files are made without the right to write.
	ReadOnly bool `json:"read_only,omitempty"`
	// Whole (pack): files that have not changed since they were unpacked are sent
	// as well.
	Whole bool `json:"whole,omitempty"`
}

// Carried says what was carried.
type Carried struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	Kept    int   `json:"kept,omitempty"`
}
