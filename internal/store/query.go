package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
)

// scanner is one row of a result.
type scanner interface{ Scan(dest ...any) error }

// queryEach calls f for each row of a query. what describes the query in errors.
func queryEach(ctx context.Context, db *sql.DB, what string, f func(scanner) error, query string, args ...any) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return wrap(what, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return wrap(what, err)
		}
	}
	return wrap(what, rows.Err())
}

// queryAll returns the rows of a query, each read by scan, or nil if there are none.
func queryAll[T any](
	ctx context.Context, db *sql.DB, what string, scan func(scanner) (T, error), query string, args ...any,
) (out []T, err error) {
	err = queryEach(ctx, db, what, func(row scanner) error {
		v, err := scan(row)
		out = append(out, v)
		return err
	}, query, args...)
	return out, err
}

// queryMap returns the rows of a query for a key and a value.
func queryMap[T any](ctx context.Context, db *sql.DB, what, query string, args ...any) (map[string]T, error) {
	out := map[string]T{}
	return out, queryEach(ctx, db, what, func(row scanner) error {
		var key string
		var v T
		err := row.Scan(&key, &v)
		out[key] = v
		return err
	}, query, args...)
}

// missing returns the error of reading one row, or nil. It is of class NotFound if there is no such
// row.
func missing(kind, id string, err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%s %s: %w", kind, id, errdefs.ErrNotFound)
	}
	return wrap("read "+kind+" "+id, err)
}
