package quotadir

// Parameters of every image.
const (
	blockSize      = 4096
	groupBlocks    = 8 * blockSize // blocks whose bitmap fills one block
	inodeSize      = 256
	inodesPerBlock = blockSize / inodeSize
	descsPerBlock  = blockSize / 64
)

// layout is the structure of an ext4.
type layout struct {
	blocks   int64 // total
	journal  int64 // blocks of the journal
	perGroup int64 // inodes per group
	descs    int64 // blocks of group descriptors in each copy, including those for growth
}

// newLayout returns the layout of an ext4 whose files can take the given number of bytes. It always
// has a journal, so that a workspace survives a power cut. It has one inode per 4 KiB if it is
// small and per 8 KiB otherwise, so that blocks run out first except for trees of tiny files.
func newLayout(bytes int64) layout {
	p := layout{journal: 4096}
	ratio := int64(8 << 10)
	if bytes < 256<<20 {
		p.journal = 1024 // the minimum of mke2fs
	}
	if bytes < 1<<30 {
		ratio = 4 << 10
	}
	data := max(bytes/blockSize, 1)
	p.blocks = data
	for {
		p.perGroup = roundUp(max(min(p.blocks, groupBlocks)*blockSize/ratio, 256), inodesPerBlock)
		p.descs = min(ceil(ceil(p.blocks*1024, groupBlocks), descsPerBlock), 1024+ceil(p.groups(), descsPerBlock))
		next := p.fit(data)
		if next <= p.blocks {
			return p
		}
		p.blocks = next
	}
}

// fit returns the total number of blocks that leaves data blocks free, with the layout's inodes and
// descriptors.
func (p layout) fit(data int64) int64 {
	p.blocks = data
	for {
		need := data + p.overhead() + reservedBlocks(p.blocks)
		if left := need % groupBlocks; need > groupBlocks && left > 0 && left < p.perGroup/inodesPerBlock+64 {
			need += p.perGroup/inodesPerBlock + 64 // mke2fs drops a last group that is too small for data
		}
		if need <= p.blocks {
			return p.blocks
		}
		p.blocks = need
	}
}

func (p layout) groups() int64 { return ceil(p.blocks, groupBlocks) }

// overhead returns the number of blocks that files can never use: journal, inodes, bitmaps, and the
// copies of superblock and descriptors.
func (p layout) overhead() int64 {
	copies := int64(0)
	for g := range p.groups() {
		if g <= 1 || isPower(g, 3) || isPower(g, 5) || isPower(g, 7) {
			copies++
		}
	}
	return p.journal + p.groups()*(p.perGroup/inodesPerBlock+2) + copies*(1+p.descs)
}

// reservedBlocks returns how many blocks a mounted ext4 keeps free for delayed allocation.
func reservedBlocks(blocks int64) int64 { return min(blocks/50, 4096) }

// isPower reports whether n is a power of base.
func isPower(n, base int64) bool {
	for n > 1 && n%base == 0 {
		n /= base
	}
	return n == 1
}

func ceil(n, by int64) int64    { return (n + by - 1) / by }
func roundUp(n, to int64) int64 { return ceil(n, to) * to }
