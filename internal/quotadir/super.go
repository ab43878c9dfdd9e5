package quotadir

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
)

// Position of the superblock, and the features that an image may have: those that features lists,
// and those that the kernel adds while it is mounted or grows.
const (
	superOffset = 1024
	superSize   = 1024
	superMagic  = 0xEF53

	compatJournal = 0x4

	incompatFiletype = 0x2
	incompatRecover  = 0x4
	incompatMetaBG   = 0x10
	incompatExtents  = 0x40
	incompat64Bit    = 0x80
	incompatFlexBG   = 0x200
	incompatKnown    = incompatFiletype | incompatRecover | incompatMetaBG | incompatExtents |
		incompat64Bit | incompatFlexBG

	stateErrors = 0x2
)

// superblock holds the fields that this package uses.
type superblock struct {
	uuid       string
	blocks     int64
	freeBlocks int64
	inodes     int64
	freeInodes int64
	perGroup   int64
	reserved   int64 // blocks of descriptors for growth
	state      uint16
	compat     uint32
	incompat   uint32
	blockBits  uint32
}

// readSuper reads the superblock of an ext4 image. ErrAltered if there is none.
func readSuper(r io.ReaderAt) (superblock, error) {
	b := make([]byte, superSize)
	if _, err := r.ReadAt(b, superOffset); err != nil {
		return superblock{}, fmt.Errorf("read superblock: %w: %w", err, ErrAltered)
	}
	u16 := func(at int) uint16 { return binary.LittleEndian.Uint16(b[at:]) }
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	u64 := func(low, high int) int64 { return int64(uint64(u32(high))<<32 | uint64(u32(low))) }
	if u16(0x38) != superMagic {
		return superblock{}, fmt.Errorf("ext4 superblock not found: %w", ErrAltered)
	}
	return superblock{
		uuid:       hex.EncodeToString(b[0x68:0x78]),
		blocks:     u64(0x4, 0x150),
		freeBlocks: u64(0xC, 0x158),
		inodes:     int64(u32(0x0)),
		freeInodes: int64(u32(0x10)),
		perGroup:   int64(u32(0x28)),
		reserved:   int64(u16(0xCE)),
		state:      u16(0x3A),
		compat:     u32(0x5C),
		incompat:   u32(0x60),
		blockBits:  u32(0x18),
	}, nil
}

// check returns ErrAltered if the superblock does not match the record.
func (s superblock) check(rec *record) error {
	switch {
	case s.uuid != rec.UUID:
		return fmt.Errorf("file system is %s, want %s: %w", s.uuid, rec.UUID, ErrAltered)
	case s.blockBits != 2:
		return fmt.Errorf("block size is not %d bytes: %w", blockSize, ErrAltered)
	case s.blocks <= 0 || s.blocks > rec.ImageBytes/blockSize:
		return fmt.Errorf("file system has %d blocks in an image of %d bytes: %w", s.blocks, rec.ImageBytes, ErrAltered)
	case s.compat&compatJournal == 0:
		return fmt.Errorf("file system has no journal: %w", ErrAltered)
	case s.incompat&^incompatKnown != 0:
		return fmt.Errorf("file system has unexpected features %#x: %w", s.incompat&^incompatKnown, ErrAltered)
	}
	return nil
}
