package store

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Amounts are in millionths, so that sums are exact.
const budgetsSchema = `
CREATE TABLE IF NOT EXISTS budgets (
	caller TEXT NOT NULL, tool TEXT NOT NULL, rule TEXT NOT NULL, period TEXT NOT NULL, start INTEGER NOT NULL,
	until INTEGER NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (caller, tool, rule, period, start)
) STRICT;
CREATE TABLE IF NOT EXISTS spends (
	id TEXT PRIMARY KEY, caller TEXT NOT NULL, tool TEXT NOT NULL, rule TEXT NOT NULL, period TEXT NOT NULL,
	start INTEGER NOT NULL, until INTEGER NOT NULL, amount INTEGER NOT NULL
) STRICT;
`

// Spend is a call's charge to a budget: Amount of Limit, both in millionths, in the period from
// Start to Until.
type Spend struct {
	// ID identifies the charge, so that it can be refunded once.
	ID                         string
	Caller, Tool, Rule, Period string
	Start, Until               time.Time
	Amount, Limit              int64
}

// Spend charges an amount if the limit allows it. used is what earlier charges used.
func (s *ApprovalStore) Spend(ctx context.Context, p Spend) (used int64, ok bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, false, wrap("charge a budget", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	err = tx.QueryRowContext(ctx,
		"SELECT used FROM budgets WHERE caller = ? AND tool = ? AND rule = ? AND period = ? AND start = ?",
		p.Caller, p.Tool, p.Rule, p.Period, stamp(p.Start)).Scan(&used)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, false, wrap("charge a budget", err)
	}
	if p.Amount < 0 || p.Amount > p.Limit-used { // cannot overflow: used never exceeds a limit by more than a limit
		return used, false, nil
	}
	if _, err := tx.ExecContext(ctx,
		"INSERT INTO budgets (caller, tool, rule, period, start, until, used) VALUES (?, ?, ?, ?, ?, ?, ?) "+
			"ON CONFLICT (caller, tool, rule, period, start) DO UPDATE SET used = used + excluded.used",
		p.Caller, p.Tool, p.Rule, p.Period, stamp(p.Start), stamp(p.Until), p.Amount); err != nil {
		return 0, false, wrap("charge a budget", err)
	}
	if _, err := tx.ExecContext(ctx,
		"INSERT INTO spends (id, caller, tool, rule, period, start, until, amount) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		p.ID, p.Caller, p.Tool, p.Rule, p.Period, stamp(p.Start), stamp(p.Until), p.Amount); err != nil {
		return 0, false, wrap("charge a budget", err)
	}
	return used, true, wrap("charge a budget", tx.Commit())
}

// Refund reverses the charge under id. Repeated calls and unknown ids have no effect.
func (s *ApprovalStore) Refund(ctx context.Context, id string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return wrap("refund a budget", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	if err := giveBack(ctx, tx, id); err != nil {
		return wrap("refund a budget", err)
	}
	return wrap("refund a budget", tx.Commit())
}

func giveBack(ctx context.Context, tx *sql.Tx, id string) error {
	var p Spend
	var start int64
	err := tx.QueryRowContext(ctx,
		"DELETE FROM spends WHERE id = ? RETURNING caller, tool, rule, period, start, amount",
		id).
		Scan(&p.Caller, &p.Tool, &p.Rule, &p.Period, &start, &p.Amount)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		_, err = tx.ExecContext(ctx,
			"UPDATE budgets SET used = used - ? WHERE caller = ? AND tool = ? AND rule = ? AND period = ? "+
				"AND start = ?",
			p.Amount, p.Caller, p.Tool, p.Rule, p.Period, start)
	}
	return err
}

// ForgetBudgets deletes the periods that ended before the given time.
func (s *ApprovalStore) ForgetBudgets(ctx context.Context, before time.Time) error {
	for _, table := range []string{"budgets", "spends"} {
		if _, err := exec(ctx, s.db, "DELETE FROM "+table+" WHERE until < ?", stamp(before)); err != nil {
			return wrap("forget budgets", err)
		}
	}
	return nil
}
