package store

import "context"

// maxIDs bounds the answers of SandboxIDs, JobIDs and ApprovalIDs.
const maxIDs = 1000

// SandboxIDs returns the ids of the caller's leases, live and ended, that begin with prefix, which
// consists of hexadecimal digits and '-'. caller "" means all callers.
func (s *Store) SandboxIDs(ctx context.Context, caller, prefix string) ([]string, error) {
	return s.ids(ctx, "sandboxes", caller, prefix)
}

// JobIDs is SandboxIDs for jobs.
func (s *Store) JobIDs(ctx context.Context, caller, prefix string) ([]string, error) {
	return s.ids(ctx, "jobs", caller, prefix)
}

// ApprovalIDs is SandboxIDs for approval requests.
func (s *Store) ApprovalIDs(ctx context.Context, caller, prefix string) ([]string, error) {
	return s.ids(ctx, "approvals", caller, prefix)
}

func (s *Store) ids(ctx context.Context, table, caller, prefix string) ([]string, error) {
	read := func(row scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}
	// The range uses the index of the primary key. 'g' comes after every character of an id.
	return queryAll(ctx, s.db, "find ids in "+table, read, "SELECT id FROM "+table+
		" WHERE id >= ?1 AND id < ?1 || 'g' AND (?2 = '' OR caller = ?2) LIMIT ?3", prefix, caller, maxIDs)
}
