package service

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/sandbox-orchestrator/orchestrator/internal/api"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/mcp"
	"github.com/sandbox-orchestrator/orchestrator/internal/ui"
)

// sessionsFile has the sessions of the dashboard. It is in the state directory.
const sessionsFile = "ui-sessions.json"

func openSessions(dir string) (*ui.Sessions, error) {
	return ui.OpenSessions(filepath.Join(dir, sessionsFile))
}

// interfaces returns the servers of MCP and HTTP. down is called when a request takes the service
// down.
func (s *service) interfaces(down func()) (*mcp.Server, *api.Server) {
	refusals, callers, requests := httpguard.NewRefusalPacer(), s.config.Callers, s.config.Requests
	talk := mcp.New(mcp.Options{
		Engine: s.engine.Governed, Refused: refusals.Wait, Version: s.app.Version, Requests: callers.MaxRequests, Log: s.log,
		ForCallers: core.ForCallers, Hosts: s.config.AllowedHosts,
	})
	return talk, api.New(api.Options{
		Engine: s.engine, Refusals: refusals, Token: s.token, TLS: s.tlsConfig(), Trusts: s.trustsChains(), Log: s.log,
		ShellCaller: s.governed.ShellCaller(), MCP: talk, Sessions: s.sessions,
		Hosts: s.config.AllowedHosts, Bodies: int64(requests.Bodies), CallerBodies: int64(requests.CallerBodies),
		MaxRequests: callers.MaxRequests, MaxStreams: callers.MaxStreams, Down: down,
		Metrics: s.metrics, Tracer: s.tracer,
	})
}

// startUpkeep starts what runs beside the engine until ctx ends. work waits for it.
func (s *service) startUpkeep(ctx context.Context, work *sync.WaitGroup) {
	work.Go(func() { s.sweepLeftovers(ctx) })
	work.Go(func() { _ = s.marker.Run(ctx, s.log) })
	work.Go(func() { s.watchConfig(ctx, s.app.Hangups) })
	work.Go(func() { watchdog(ctx, s.log, s.store.Ping) })
	work.Go(func() { s.scrapes.serve(ctx, s.metrics, s.log) })
	if s.tls != nil {
		work.Go(func() { s.tls.Run(ctx, s.log) })
	}
}
