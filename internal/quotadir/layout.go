package quotadir

// What every image is made with.
const (
	blockSize      = 4096
	groupBlocks    = 8 * blockSize // blocks whose bitmap fills one block
	inodeSize      = 256
	inodesPerBlock = blockSize / inodeSize
	descsPerBlock  = blockSize / 64
)

// layout is the shape of an ext4.
type layout struct {
	blocks   int64 // in all
	journal  int64 // blocks of it
	perGroup int64 // inodes of a group
	descs    int64 // blocks of group descriptors, those for growing included, in each copy
}

// newLayout shapes an ext4 whose files may take bytes. There is always a journal: a workspace outlives a power cut. There is an inode for
// each 4 KiB of small ones and 8 KiB of others, so that blocks end first but for trees of tiny files.
func newLayout(bytes int64) layout {
	p := layout{journal: 4096}
	ratio := int64(8 << 10)
	if bytes < 256<<20 {
		p.journal = 1024 // the least there is
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

// fit is how many blocks there must be in all for data of them to be free, with the plan's inodes and descriptors.
func (p layout) fit(data int64) int64 {
	p.blocks = data
	for {
		need := data + p.overhead() + reservedBlocks(p.blocks)
		if left := need % groupBlocks; need > groupBlocks && left > 0 && left < p.perGroup/inodesPerBlock+64 {
			need += p.perGroup/inodesPerBlock + 64 // mkfs drops a last group that has no room for data
		}
		if need <= p.blocks {
			return p.blocks
		}
		p.blocks = need
	}
}

func (p layout) groups() int64 { return ceil(p.blocks, groupBlocks) }

// overhead counts what is never free: the journal, inodes, bitmaps, and the copies of superblock and descriptors.
func (p layout) overhead() int64 {
	copies := int64(0)
	for g := range p.groups() {
		if g <= 1 || isPower(g, 3) || isPower(g, 5) || isPower(g, 7) {
			copies++
		}
	}
	return p.journal + p.groups()*(p.perGroup/inodesPerBlock+2) + copies*(1+p.descs)
}

// reservedBlocks is what a mounted ext4 keeps free of its blocks for delayed allocations: it gives them to nobody.
func reservedBlocks(blocks int64) int64 { return min(blocks/50, 4096) }

func isPower(n, base int64) bool {
	for n > 1 && n%base == 0 {
		n /= base
	}
	return n == 1
}

func ceil(n, by int64) int64    { return (n + by - 1) / by }
func roundUp(n, to int64) int64 { return ceil(n, to) * to }
