package conformance

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"github.com/shoenig/test/must"
)

// inputUntilExit is a user's side of a session that sends input until it has seen the exit code.
type inputUntilExit struct {
	// closes tells whether the first message closes the input, as with `nomad alloc exec </dev/null`.
	closes bool
	sent   atomic.Int64
	code   atomic.Int64
	exited chan struct{}
}

func (s *inputUntilExit) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	if s.sent.Add(1) > 1 {
		if s.closes {
			<-s.exited
			return nil, io.EOF
		}
		select {
		case <-s.exited:
			return nil, io.EOF
		case <-time.After(100 * time.Microsecond):
		}
	}
	input := &proto.ExecTaskStreamingIOOperation{Close: s.closes}
	if !s.closes {
		input.Data = []byte("more\n")
	}
	return &drivers.ExecTaskStreamingRequestMsg{Stdin: input}, nil
}

func (s *inputUntilExit) Send(message *drivers.ExecTaskStreamingResponseMsg) error {
	if message.Exited {
		s.code.Store(int64(message.Result.ExitCode))
		close(s.exited)
	}
	return nil
}

// Nomad's client drops the replies that it has not read when a send fails because the stream has ended. So the exit
// code must arrive before the end of the stream, whatever the user sends at that moment.
func TestExecKeepsItsExitCode(t *testing.T) {
	plugin := configured(t)
	_, task, _ := start(t, plugin, shell("sleep 600"))
	raw, ok := plugin.driver.(drivers.ExecTaskStreamingRawDriver)
	must.True(t, ok)
	commands := map[string][]string{
		"refused": {"oci-rs://", "image=elsewhere.example/tools:1", "--", "true"},
		"short":   {"/bin/sh", "-c", "echo out; echo err >&2; exit 125"},
	}
	for name, command := range commands {
		for _, closes := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				for range 30 {
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					user := &inputUntilExit{closes: closes, exited: make(chan struct{})}
					user.code.Store(-1)
					// An error after the exit code does no harm: the user has the code.
					err := raw.ExecTaskStreamingRaw(ctx, task.ID, command, false, user)
					cancel()
					must.Eq(t, 125, user.code.Load(), must.Sprintf("%v", err))
				}
			})
		}
	}
}
