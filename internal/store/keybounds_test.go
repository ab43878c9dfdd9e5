package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// manyKeys are bounds that only tests about bounds reach.
var manyKeys = KeyBounds{Answers: 1000, Bytes: 1 << 20, Keys: 1000}

func beginKey(t *testing.T, s *Store, caller, key string) (Key, bool) {
	t.Helper()
	k, fresh, err := s.BeginKey(t.Context(), Key{Caller: caller, Key: key, Op: "run", Hash: "h", Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return k, fresh
}

// The oldest answers are evicted first, by either bound. Keys of running requests and of other
// callers are never evicted.
func TestKeyBoundsEvictOldestAnswers(t *testing.T) {
	for name, b := range map[string]KeyBounds{"count": {Answers: 3, Bytes: 1 << 20, Keys: 2}, "bytes": {Answers: 1000,
		Bytes: 350, Keys: 2}} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			beginKey(t, s, "ann", "under way")
			beginKey(t, s, "bob", "k")
			answer := bytes.Repeat([]byte("x"), 100)
			if err := s.FinishKey(t.Context(), "bob", "k", "", answer, b); err != nil {
				t.Fatal(err)
			}
			for i := range 7 {
				beginKey(t, s, "ann", fmt.Sprint("k", i))
				if err := s.FinishKey(t.Context(), "ann", fmt.Sprint("k", i), "ref", answer, b); err != nil {
					t.Fatal(err)
				}
			}
			for i, want := range []KeyState{-1, -1, KeyEvicted, KeyEvicted, KeyAnswered, KeyAnswered, KeyAnswered} {
				if want < 0 {
					continue // beginning it again would reserve it
				}
				k, fresh := beginKey(t, s, "ann", fmt.Sprint("k", i))
				if fresh || k.State != want || (len(k.Answer) == 100) != (want == KeyAnswered) || k.Ref != "ref" {
					t.Errorf("key %d: fresh %v, %+v, want state %d", i, fresh, k, want)
				}
			}
			if k, fresh := beginKey(t, s, "ann", "k0"); !fresh {
				t.Errorf("the oldest key = %+v, want it deleted", k)
			}
			if k, fresh := beginKey(t, s, "ann", "under way"); fresh || k.State != KeyOpen {
				t.Errorf("the running key = fresh %t, %+v; want the stored one in state %d", fresh, k, KeyOpen)
			}
			if k, fresh := beginKey(t, s, "bob", "k"); fresh || k.State != KeyAnswered {
				t.Errorf("key of another caller = fresh %t, %+v; want the stored one in state %d", fresh, k, KeyAnswered)
			}
		})
	}
}

func TestAnswerOverBoundIsNotStored(t *testing.T) {
	s := open(t, t.TempDir())
	b := KeyBounds{Answers: 3, Bytes: 100, Keys: 3}
	for key, size := range map[string]int{"small": 40, "large": 101} {
		beginKey(t, s, "ann", key)
		if err := s.FinishKey(t.Context(), "ann", key, "", make([]byte, size), b); err != nil {
			t.Fatal(err)
		}
	}
	if k, fresh := beginKey(t, s, "ann", "large"); fresh || k.State != KeyTooLarge || len(k.Answer) > 0 {
		t.Errorf("key of a large answer = fresh %t, %+v; want the stored one in state %d without an answer",
			fresh, k, KeyTooLarge)
	}
	if k, _ := beginKey(t, s, "ann", "small"); k.State != KeyAnswered {
		t.Errorf("key of a small answer = %+v, want state %d", k, KeyAnswered)
	}
}

// The totals match the rows after any sequence of changes and starts.
func TestKeyTotalsMatchRows(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 600 {
		caller, key := fmt.Sprint("caller", r.IntN(3)), fmt.Sprint("k", r.IntN(40))
		b := KeyBounds{Answers: 1 + r.IntN(12), Bytes: 50 + r.Int64N(500), Keys: 1 + r.IntN(12)}
		switch n := r.IntN(20); {
		case n < 10:
			if k, _ := beginKey(t, s, caller, key); k.State == KeyOpen {
				err = s.FinishKey(t.Context(), caller, key, "", make([]byte, r.IntN(100)), b)
			}
		case n < 14:
			beginKey(t, s, caller, key)
		case n < 18:
			err = s.DropKey(t.Context(), caller, key)
		case n == 18:
			_, err = s.Forget(t.Context(), time.Now().Add(-time.Duration(r.IntN(20))*time.Millisecond))
		default:
			s.Close()
			s, err = Open(t.Context(), dir)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := totals(t, s, "SELECT caller || ' ' || answers || ' ' || bytes || ' ' || bare FROM key_totals ORDER BY 1")
		want := totals(t, s,
			"SELECT caller || ' ' || sum(done = 1) || ' ' || sum(length(answer)) || ' ' || sum(done > 1) FROM keys "+
				"WHERE done > 0 GROUP BY caller ORDER BY 1")
		if !slices.Equal(got, want) {
			t.Fatalf("totals %v, want %v", got, want)
		}
	}
	s.Close()
}

func totals(t *testing.T, s *Store, query string) (all []string) {
	t.Helper()
	rows, err := s.db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		all = append(all, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
