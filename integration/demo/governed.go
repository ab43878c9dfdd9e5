package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// governed returns the calls that a policy decides about before they run.
func governed() []call {
	return []call{
		{"sudo behind env and quotes, profile phase2", "policy_denied", refused},
		{"rm -r, profile phase2: asked, approved, run", "exited 0", approved},
		{"find -delete, profile readonly, by a token", "policy_denied", readonly},
		{"the audit log of these calls, verified", "whole", audited},
	}
}

// tool calls a tool that takes a command.
func tool(ctx context.Context, c *client.Client, name, profile, command string, o client.CallOptions) (v1.ToolResult,
	error) {
	input, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		return v1.ToolResult{}, err
	}
	return c.Tools.Call(ctx, name, v1.ToolCall{Profile: profile, Input: input}, o)
}

// ended describes a tool's result in words.
func ended(r v1.ToolResult, seen string) outcome {
	ending := r.Ending
	if ending == "exited" && r.ExitCode != nil {
		ending += fmt.Sprintf(" %d", *r.ExitCode)
	}
	return outcome{ending, seen}
}

// refused calls a command that the policy denies.
func refused(ctx context.Context, s *service) (outcome, error) {
	r, err := tool(ctx, s.client, "system.bash", "phase2", `true && env LANG=C 'su'"do" id`, client.CallOptions{})
	if err != nil || r.Verdict == nil {
		return ended(r, ""), errors.Join(err, noVerdict(r))
	}
	return ended(r, fmt.Sprintf("%s, at column %d", r.Verdict.Rule, r.Verdict.At.Column)), nil
}

// noVerdict returns an error if the result has no verdict with a place.
func noVerdict(r v1.ToolResult) error {
	if r.Verdict == nil || r.Verdict.At == nil {
		return fmt.Errorf("verdict %+v has no place", r.Verdict)
	}
	return nil
}

// approved calls a command that needs approval, which a listener gives.
func approved(ctx context.Context, s *service) (outcome, error) {
	var began time.Time
	var told time.Duration
	watch, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { // the result is received below
		watched <- s.client.Approvals.Watch(watch, func(e v1.ApprovalEvent) error {
			if e.Type != "asked" {
				return nil
			}
			told = time.Since(began)
			_, err := s.client.Approvals.Answer(ctx, e.Approval.ID, v1.ApprovalAnswer{Action: "approve", Note: "in the demo"})
			return err
		})
	}()
	began = time.Now()
	r, err := tool(ctx, s.client, "system.bash", "phase2", "mkdir junk && rm -r junk && test ! -e junk",
		client.CallOptions{})
	stop()
	if err := <-watched; err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		return outcome{}, err
	}
	if err == nil && r.Approval == "" {
		err = errors.New("the call requested no approval")
	}
	return ended(r, fmt.Sprintf("a listener got the request %s after the call began", round(told))), err
}

// readonly calls a command that the profile of a token denies.
func readonly(ctx context.Context, s *service) (outcome, error) {
	token, err := s.client.Tokens.Create(ctx, v1.TokenRequest{Caller: "reader", Profile: "readonly", Trust: 3})
	if err != nil {
		return outcome{}, err
	}
	c, err := client.New(client.Options{Address: s.client.Address(), Token: token.Secret})
	if err != nil {
		return outcome{}, err
	}
	defer c.Close()
	r, err := tool(ctx, c, "run_shell", "", "find . -name '*.txt' -delete", client.CallOptions{})
	if err != nil || r.Verdict == nil {
		return ended(r, ""), errors.Join(err, noVerdict(r))
	}
	if _, err := c.Tokens.List(ctx); err == nil {
		return outcome{}, errors.New("a caller without operator rights listed the tokens")
	}
	return ended(r, r.Verdict.Rule), nil
}

// audited verifies the audit log.
func audited(ctx context.Context, s *service) (outcome, error) {
	r, err := s.client.Audit.Verify(ctx, "")
	if err != nil {
		return outcome{}, err
	}
	if !r.OK {
		return outcome{ending: "broken"}, fmt.Errorf("problems of the audit log: %+v", r.Problems)
	}
	return outcome{"whole", fmt.Sprintf("%d records, a keyed chain", r.Records)}, nil
}
