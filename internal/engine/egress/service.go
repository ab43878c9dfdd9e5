// Package egress serves requests about the egress of leases, and carries it: it checks what a
// caller may reach, keeps a gateway session for each lease, and records connections.
//
// A grant is recorded in the audit log before it takes effect.
package egress

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Config configures what sandboxes may reach outside.
type Config struct {
	// Gateway configures the egress gateway. The service sets its Audit field.
	Gateway netpolicy.Options
	// Allow lists the rules that callers who are not operators may request. Empty allows nothing.
	Allow []Allowance
	// Secrets lists the credentials that a lease can request by name.
	Secrets []Credential
}

// Allowance is a rule that the given callers and profiles may request.
type Allowance struct {
	netpolicy.Rule
	// Callers and Profiles limit the rule. Empty or "*" means everyone.
	Callers, Profiles []string
}

func (a Allowance) appliesTo(p caller.Principal) bool {
	return listMatches(a.Callers, p.Caller) && listMatches(a.Profiles, p.Profile)
}

func listMatches(list []string, name string) bool {
	return len(list) == 0 || slices.Contains(list, "*") || slices.Contains(list, name)
}

// Credential is a secret of the service. Its value never enters a sandbox.
type Credential struct {
	netpolicy.Secret
	// Bare is the value without the prefix that its header adds.
	Bare string
	// Env names a variable that holds a placeholder in the sandbox, or "".
	Env string
	// Callers lists who may request it besides operators. "*" means everyone.
	Callers []string
}

// Leases finds live leases.
type Leases interface {
	// FindLease returns a live lease of the caller.
	FindLease(ctx context.Context, p caller.Principal, id string) (*scheduler.Lease, error)
	// Live returns the live lease with this id, or nil. It does not check the caller.
	Live(id string) *scheduler.Lease
}

// Rows reads and changes the records of sandboxes.
type Rows interface {
	Sandbox(ctx context.Context, id string) (store.Sandbox, error)
	Update(ctx context.Context, id string, change func(*store.Sandbox) error) (store.Sandbox, error)
}

// Locks serializes work by name.
type Locks interface {
	Lock(ctx context.Context, name string) (leave func(), err error)
}

// Options configures a Service.
type Options struct {
	// Config configures egress. If it is nil, sandboxes reach nothing.
	Config *Config
	Leases Leases
	Rows   Rows
	Locks  Locks
	// Audit records grants and connections. If it is nil, nothing is recorded, and the functions
	// are not used. AdmitRecord returns an error if a caller's share of the log is used up. Redact
	// hides a value in all records.
	Audit       *audit.Log
	AdmitRecord func(p caller.Principal) error
	Redact      func(value string)
	// OnConnection, if set, is called after each connection of a sandbox. It must not block.
	OnConnection func(netpolicy.Connection)
	// MaxSandboxes is the maximum number of sandboxes at a time.
	MaxSandboxes int
	Log          *slog.Logger
}

// Service owns the gateway and the egress sessions of leases. Its methods may be called
// concurrently.
type Service struct {
	opts    Options
	config  Config
	log     *slog.Logger
	gateway *netpolicy.Gateway // nil until Start, and if sandboxes reach nothing
	auditor *auditor
	ctx     context.Context // parent of all sessions
	stop    context.CancelFunc
	work    sync.WaitGroup // goroutines of sessions

	mu       sync.Mutex
	sessions map[string]*session // by sandbox
	// ceilings caches compiled rules, keyed by the subset of Allow that applies. The configuration
	// bounds their number.
	ceilings map[string]*netpolicy.Rules
	// ended holds the traffic of closed sessions of live leases, so that reopening a session does
	// not reset its byte limits.
	ended map[string]traffic
}

// New returns a Service. Start must be called before the first lease gets egress.
func New(opts Options) *Service {
	s := &Service{
		opts: opts, log: opts.Log,
		sessions: map[string]*session{}, ceilings: map[string]*netpolicy.Rules{}, ended: map[string]traffic{},
	}
	if opts.Config != nil {
		s.config = *opts.Config
	}
	return s
}

// Start starts the gateway. After Start, Close must be called.
func (s *Service) Start() (err error) {
	if !s.enabled() {
		return nil
	}
	if s.opts.Audit != nil {
		for _, c := range s.config.Secrets {
			s.opts.Redact(c.Value)
			s.opts.Redact(c.Bare)
		}
	}
	s.auditor = newAuditor(s.opts.Audit, s.log)
	s.config.Gateway.Audit = s.noteConnection
	if s.gateway, err = netpolicy.New(s.config.Gateway); err != nil {
		s.auditor.close()
		return err
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return nil
}

// noteConnection records and reports a connection that ended.
func (s *Service) noteConnection(c netpolicy.Connection) {
	s.auditor.enqueue(c)
	if s.opts.OnConnection != nil {
		s.opts.OnConnection(c)
	}
}

// Open returns the number of open connections of all sandboxes.
func (s *Service) Open() int64 {
	if s.gateway == nil {
		return 0
	}
	return s.gateway.Open()
}

// enabled reports whether sandboxes can have egress.
func (s *Service) enabled() bool { return s.opts.Config != nil }

// Close closes all connections and returns when they are recorded.
func (s *Service) Close() {
	if s.gateway == nil {
		return
	}
	s.stop()
	if err := s.gateway.Close(); err != nil {
		s.log.Error("failed to close the gateway", "error", err)
	}
	s.work.Wait()
	s.auditor.close()
}

// Connections returns a function that lists the latest connections of a sandbox, or nil if the
// sandbox has no egress.
func (s *Service) Connections(sandbox string) func() []netpolicy.Connection {
	o, _ := s.find(sandbox)
	if o == nil {
		return nil
	}
	return func() []netpolicy.Connection { return o.gateway.State().Recent }
}

// SetAllow replaces Config.Allow for later requests. Leases keep the limits that they have until
// they request egress again.
func (s *Service) SetAllow(list []Allowance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config.Allow, s.ceilings = list, map[string]*netpolicy.Rules{}
}

// ceiling returns the rules that limit a caller who is not an operator. Callers with the same rules
// get the same pointer, so that serve can compare ceilings.
func (s *Service) ceiling(p caller.Principal) (*netpolicy.Rules, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rules []netpolicy.Rule
	which := make([]byte, len(s.config.Allow))
	for i, a := range s.config.Allow {
		if a.appliesTo(p) {
			rules, which[i] = append(rules, a.Rule), 1
		}
	}
	if had := s.ceilings[string(which)]; had != nil {
		return had, nil
	}
	made, err := netpolicy.Compile(rules)
	if err == nil {
		s.ceilings[string(which)] = made
	}
	return made, err
}

// credential returns a credential by name, and reports whether the caller may request it.
func (s *Service) credential(p caller.Principal, name string) (Credential, bool) {
	i := slices.IndexFunc(s.config.Secrets, func(c Credential) bool { return c.Name == name })
	if i < 0 {
		return Credential{}, false
	}
	c := s.config.Secrets[i]
	return c, p.Operator || slices.Contains(c.Callers, "*") || slices.Contains(c.Callers, p.Caller)
}

// find returns the sandbox's session and its current grant, or nil.
func (s *Service) find(id string) (*session, *Grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.sessions[id]; o != nil {
		return o, o.grant
	}
	return nil, nil
}
