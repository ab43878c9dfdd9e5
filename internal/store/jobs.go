package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// jobsSchema holds jobs and their commands. A command's row is written before its attempt is sent
// to a sandbox, so that a crash cannot hide that it may have run.
const jobsSchema = `
CREATE TABLE IF NOT EXISTS jobs (
	id TEXT PRIMARY KEY, caller TEXT NOT NULL, name TEXT NOT NULL, principal TEXT NOT NULL, request TEXT NOT NULL,
	created INTEGER NOT NULL, deadline INTEGER NOT NULL, stopped TEXT NOT NULL DEFAULT '',
	ended INTEGER NOT NULL DEFAULT 0, ending TEXT NOT NULL DEFAULT '', expires INTEGER NOT NULL DEFAULT 0,
	counts TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS jobs_caller ON jobs (caller, created);
CREATE TABLE IF NOT EXISTS job_commands (
	job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, idx INTEGER NOT NULL, name TEXT NOT NULL,
	exec TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'queued', attempt INTEGER NOT NULL DEFAULT 1,
	sandbox TEXT NOT NULL DEFAULT '', started INTEGER NOT NULL DEFAULT 0, attempts TEXT NOT NULL DEFAULT '[]',
	outcome TEXT NOT NULL DEFAULT '', PRIMARY KEY (job, idx)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job_artifacts (
	job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, idx INTEGER NOT NULL, path TEXT NOT NULL,
	size INTEGER NOT NULL, file TEXT NOT NULL, PRIMARY KEY (job, idx, path)
) STRICT, WITHOUT ROWID;
`

// Job is the row of a job.
type Job struct {
	ID     string
	Caller string
	Name   string
	// Principal and Request are JSON.
	Principal, Request []byte
	Created            time.Time
	Deadline           time.Time
	// Stopped says why no further command starts, or is "".
	Stopped string
	// Ended, Ending, Expires and Counts, which is JSON, are set once every command has ended.
	Ended   time.Time
	Ending  string
	Expires time.Time
	Counts  []byte
}

// JobState is the state of a job's command.
type JobState string

// The states of a command, in order. A retry makes it queued again.
const (
	JobQueued  JobState = "queued"
	JobStarted JobState = "started" // it may have been sent to its sandbox
	JobEnded   JobState = "ended"
)

// JobCommand is the row of one command of a job.
type JobCommand struct {
	Job   string
	Index int
	Name  string
	// Exec is JSON. Only InsertJob uses it; see JobCommandExec.
	Exec  []byte
	State JobState
	// Attempt is the number of the current attempt, from 1. Sandbox and Started are set while it is
	// started.
	Attempt int
	Sandbox string
	Started time.Time
	// Attempts is a JSON list of the ended attempts. Outcome classifies the last one.
	Attempts []byte
	Outcome  string
}

// jobRowBytes is counted for each command besides its texts.
const jobRowBytes = 256

// Bytes is about what a new command uses in the database.
func (c JobCommand) Bytes() int64 { return int64(len(c.Exec)+len(c.Name)) + jobRowBytes }

// JobArtifact is a file that a command of a job left.
type JobArtifact struct {
	Index int
	Path  string
	Size  int64
	// File is the name of the copy on disk.
	File string
}

// JobCounts counts the commands of a job by state, and the ended ones by outcome.
type JobCounts struct {
	States   map[JobState]int
	Outcomes map[string]int
}

// JobStore holds the rows of jobs.
type JobStore struct{ db *sql.DB }

// Jobs returns the store of jobs.
func (s *Store) Jobs() *JobStore { return &JobStore{s.db} }

const jobColumns = "id, caller, name, principal, request, created, deadline, stopped, ended, ending, expires, counts"

const jobCommandColumns = "job, idx, name, state, attempt, sandbox, started, attempts, outcome"

// InsertJob records a job and its commands, unless check returns an error. check receives how many
// jobs of the caller have not ended, and how many there are in total.
func (s *JobStore) InsertJob(ctx context.Context, j Job, commands []JobCommand, check func(active, kept int) error) error {
	const what = "record job "
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return wrap(what+j.ID, err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	var active, kept int
	if err := tx.QueryRowContext(ctx, "SELECT count(CASE WHEN ended = 0 THEN 1 END), count(*) FROM jobs WHERE caller = ?",
		j.Caller).Scan(&active, &kept); err != nil {
		return wrap(what+j.ID, err)
	}
	if err := check(active, kept); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx,
		"INSERT INTO jobs (id, caller, name, principal, request, created, deadline) VALUES (?, ?, ?, ?, ?, ?, ?)",
		j.ID, j.Caller, j.Name, string(j.Principal), string(j.Request), stamp(j.Created), stamp(j.Deadline)); err != nil {
		return wrap(what+j.ID, err)
	}
	insert, err := tx.PrepareContext(ctx, "INSERT INTO job_commands (job, idx, name, exec) VALUES (?, ?, ?, ?)")
	if err != nil {
		return wrap(what+j.ID, err)
	}
	defer insert.Close()
	for _, c := range commands {
		if _, err := insert.ExecContext(ctx, j.ID, c.Index, c.Name, string(c.Exec)); err != nil {
			return wrap(what+j.ID, err)
		}
	}
	return wrap(what+j.ID, tx.Commit())
}

// StartJobCommand records that the current attempt of a queued command may run in the sandbox from
// now on. It reports false if the command is not queued any more or the job was stopped.
func (s *JobStore) StartJobCommand(ctx context.Context, job string, index, attempt int, sandbox string,
	at time.Time) (bool, error) {
	return s.changeJobCommand(ctx, "record the start of a job's command",
		"UPDATE job_commands SET state = 'started', sandbox = ?, started = ?"+
			" WHERE job = ? AND idx = ? AND attempt = ? AND state = 'queued'"+
			" AND EXISTS (SELECT 1 FROM jobs WHERE id = job AND stopped = '')",
		sandbox, stamp(at), job, index, attempt)
}

// RequeueJobCommand records that a started attempt never reached its sandbox, so that it runs again
// under the same number.
func (s *JobStore) RequeueJobCommand(ctx context.Context, job string, index, attempt int) (bool, error) {
	return s.changeJobCommand(ctx, "queue a job's command again",
		"UPDATE job_commands SET state = 'queued', sandbox = '', started = 0"+
			" WHERE job = ? AND idx = ? AND attempt = ? AND state = 'started'", job, index, attempt)
}

// EndJobCommand appends an ended attempt, as JSON, to the command. With retry the command is queued
// for its next attempt, otherwise it has ended with the outcome. It reports false if that attempt
// has ended before.
func (s *JobStore) EndJobCommand(ctx context.Context, job string, index, attempt int, ended any, outcome string,
	retry bool) (bool, error) {
	body, err := json.Marshal(ended)
	if err != nil {
		return false, err
	}
	state, next := JobEnded, attempt
	if retry {
		state, next = JobQueued, attempt+1
	}
	return s.changeJobCommand(ctx, "record the end of a job's command",
		"UPDATE job_commands SET state = ?, attempt = ?, sandbox = '', outcome = ?,"+
			" attempts = json_insert(attempts, '$[#]', json(?))"+
			" WHERE job = ? AND idx = ? AND attempt = ? AND state <> 'ended'",
		state, next, outcome, string(body), job, index, attempt)
}

// EndQueuedJobCommands ends all queued commands of a job with the outcome.
func (s *JobStore) EndQueuedJobCommands(ctx context.Context, job, outcome string) error {
	_, err := exec(ctx, s.db,
		"UPDATE job_commands SET state = 'ended', outcome = ? WHERE job = ? AND state = 'queued'", outcome, job)
	return wrap("end the queued commands of job "+job, err)
}

func (s *JobStore) changeJobCommand(ctx context.Context, what, query string, args ...any) (bool, error) {
	res, err := exec(ctx, s.db, query, args...)
	if err != nil {
		return false, wrap(what, err)
	}
	n, err := res.RowsAffected()
	return n > 0, wrap(what, err)
}

// StopJob records why no further command of the job starts. The first reason stays.
func (s *JobStore) StopJob(ctx context.Context, id, why string) error {
	_, err := exec(ctx, s.db, "UPDATE jobs SET stopped = ? WHERE id = ? AND stopped = '' AND ended = 0", why, id)
	return wrap("stop job "+id, err)
}

// EndJob records the fields of j that are set at a job's end, and why it was stopped, which
// replaces a reason that came too late. Later calls change nothing.
func (s *JobStore) EndJob(ctx context.Context, j Job) error {
	_, err := exec(ctx, s.db,
		"UPDATE jobs SET ended = ?, stopped = ?, ending = ?, expires = ?, counts = ? WHERE id = ? AND ended = 0",
		stamp(j.Ended), j.Stopped, j.Ending, stamp(j.Expires), string(j.Counts), j.ID)
	return wrap("record the end of job "+j.ID, err)
}

// DeleteJob deletes a job with its commands and artifacts.
func (s *JobStore) DeleteJob(ctx context.Context, id string) error {
	_, err := exec(ctx, s.db, "DELETE FROM jobs WHERE id = ?", id)
	return wrap("delete job "+id, err)
}

// Job returns one row, or an error of class NotFound.
func (s *JobStore) Job(ctx context.Context, id string) (Job, error) {
	j, err := scanJob(s.db.QueryRowContext(ctx, "SELECT "+jobColumns+" FROM jobs WHERE id = ?", id))
	return j, missing("job", id, err)
}

// List returns at most limit jobs of the caller, or of all callers if it is "", newest first.
func (s *JobStore) List(ctx context.Context, caller string, limit int) ([]Job, error) {
	return s.queryJobs(ctx, "WHERE ?1 = '' OR caller = ?1 ORDER BY created DESC, id DESC LIMIT ?2", caller, limit)
}

// ActiveJobs returns all jobs that have not ended, oldest first.
func (s *JobStore) ActiveJobs(ctx context.Context) ([]Job, error) {
	return s.queryJobs(ctx, "WHERE ended = 0 ORDER BY created, id")
}

// ExpiredJobs returns the jobs to forget at the given time.
func (s *JobStore) ExpiredJobs(ctx context.Context, now time.Time) ([]Job, error) {
	return s.queryJobs(ctx, "WHERE ended > 0 AND expires <= ? ORDER BY expires LIMIT 100", stamp(now))
}

// JobSize is the caller of a job and the size of its commands in the database.
type JobSize struct {
	Caller string
	Bytes  int64
}

// JobSizes returns the sizes of all jobs by id.
func (s *JobStore) JobSizes(ctx context.Context) (map[string]JobSize, error) {
	out := map[string]JobSize{}
	return out, queryEach(ctx, s.db, "list jobs", func(row scanner) error {
		var id string
		var size JobSize
		err := row.Scan(&id, &size.Caller, &size.Bytes)
		out[id] = size
		return err
	}, "SELECT id, caller, COALESCE((SELECT SUM(length(CAST(exec AS BLOB)) + length(CAST(name AS BLOB)) + ?)"+
		" FROM job_commands WHERE job = jobs.id), 0) FROM jobs", jobRowBytes)
}

func (s *JobStore) queryJobs(ctx context.Context, where string, args ...any) ([]Job, error) {
	return queryAll(ctx, s.db, "list jobs", scanJob, "SELECT "+jobColumns+" FROM jobs "+where, args...)
}

func scanJob(row scanner) (Job, error) {
	var j Job
	var created, deadline, ended, expires int64
	err := row.Scan(&j.ID, &j.Caller, &j.Name, &j.Principal, &j.Request, &created, &deadline, &j.Stopped, &ended,
		&j.Ending, &expires, &j.Counts)
	j.Created, j.Deadline, j.Ended, j.Expires = moment(created), moment(deadline), moment(ended), moment(expires)
	return j, err
}

// JobCommand returns one command of a job, or an error of class NotFound.
func (s *JobStore) JobCommand(ctx context.Context, job string, index int) (JobCommand, error) {
	list, err := s.JobCommands(ctx, job, index, 1)
	if err == nil && (len(list) == 0 || list[0].Index != index) {
		err = fmt.Errorf("command %d of job %s: %w", index, job, errdefs.ErrNotFound)
	}
	if err != nil {
		return JobCommand{}, err
	}
	return list[0], nil
}

// JobCommandExec returns what a command of a job runs, as JSON.
func (s *JobStore) JobCommandExec(ctx context.Context, job string, index int) (body []byte, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT exec FROM job_commands WHERE job = ? AND idx = ?", job, index).Scan(&body)
	return body, wrap("read a job's command", err)
}

// JobCommands returns at most limit commands of a job from the index on, in order. A negative limit
// is none.
func (s *JobStore) JobCommands(ctx context.Context, job string, from, limit int) ([]JobCommand, error) {
	scan := func(row scanner) (c JobCommand, err error) {
		var started int64
		err = row.Scan(&c.Job, &c.Index, &c.Name, &c.State, &c.Attempt, &c.Sandbox, &started, &c.Attempts,
			&c.Outcome)
		c.Started = moment(started)
		return c, err
	}
	return queryAll(ctx, s.db, "list the commands of a job", scan,
		"SELECT "+jobCommandColumns+" FROM job_commands WHERE job = ? AND idx >= ? ORDER BY idx LIMIT ?", job, from, limit)
}

// CountJobCommands counts the commands of a job.
func (s *JobStore) CountJobCommands(ctx context.Context, job string) (JobCounts, error) {
	out := JobCounts{States: map[JobState]int{}, Outcomes: map[string]int{}}
	return out, queryEach(ctx, s.db, "count the commands of a job", func(row scanner) error {
		var state JobState
		var outcome string
		var n int
		err := row.Scan(&state, &outcome, &n)
		out.States[state] += n
		if state == JobEnded {
			out.Outcomes[outcome] += n
		}
		return err
	}, "SELECT state, outcome, count(*) FROM job_commands WHERE job = ? GROUP BY state, outcome", job)
}

// SetJobArtifacts records the artifacts of a command, in place of earlier ones.
func (s *JobStore) SetJobArtifacts(ctx context.Context, job string, index int, list []JobArtifact) error {
	const what = "record the artifacts of a job"
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return wrap(what, err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, "DELETE FROM job_artifacts WHERE job = ? AND idx = ?", job, index); err != nil {
		return wrap(what, err)
	}
	for _, a := range list {
		if _, err := tx.ExecContext(ctx, "INSERT INTO job_artifacts (job, idx, path, size, file) VALUES (?, ?, ?, ?, ?)",
			job, index, a.Path, a.Size, a.File); err != nil {
			return wrap(what, err)
		}
	}
	return wrap(what, tx.Commit())
}

// JobArtifact returns an artifact of a command, or an error of class NotFound.
func (s *JobStore) JobArtifact(ctx context.Context, job string, index int, path string) (JobArtifact, error) {
	a := JobArtifact{Index: index, Path: path}
	err := s.db.QueryRowContext(ctx, "SELECT size, file FROM job_artifacts WHERE job = ? AND idx = ? AND path = ?",
		job, index, path).Scan(&a.Size, &a.File)
	return a, wrap("read an artifact of a job", err)
}

// JobArtifacts returns at most limit artifacts of a job, ordered by command and path. They come
// after the path of the command from, and after all of the commands before it.
func (s *JobStore) JobArtifacts(ctx context.Context, job string, from int, after string,
	limit int) ([]JobArtifact, error) {
	scan := func(row scanner) (a JobArtifact, err error) {
		err = row.Scan(&a.Index, &a.Path, &a.Size, &a.File)
		return a, err
	}
	return queryAll(ctx, s.db, "list the artifacts of a job", scan,
		"SELECT idx, path, size, file FROM job_artifacts"+
			" WHERE job = ? AND (idx, path) > (?, ?) ORDER BY idx, path LIMIT ?", job, from, after, limit)
}
