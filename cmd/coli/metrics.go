package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/metrics"
)

// metricsServer serves Prometheus metrics of the model that is at work: --metrics. It observes experiments, and coli run has one too.
type metricsServer struct {
	address metricsAddress
	server  *http.Server
	ended   chan struct{} // closed when the server has ended

	mu    sync.RWMutex
	model *engine.Model // not closed while mu is held; nil for none
}

func (s *metricsServer) flags(f *pflag.FlagSet) {
	f.Var(&s.address, "metrics", "serve Prometheus metrics at `ADDR`: 9100 (of 127.0.0.1), 0.0.0.0:9100, or port 0 for a free one")
}

func (s *metricsServer) wanted() bool { return s.address != "" }

func (s *metricsServer) measures() bool { return true }

func (s *metricsServer) screen() bool { return false }

func (s *metricsServer) start(_ context.Context, b *benchRun) error { return s.serve(b.say) }

// serve begins to serve, and says where.
func (s *metricsServer) serve(say func(line string)) error {
	l, err := net.Listen("tcp", string(s.address))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("--metrics %s: the address is in use; give another port, or 0 for a free one", s.address)
	case err != nil:
		return fmt.Errorf("--metrics %s: %w; give an address of this machine and a port that you may use", s.address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(s.live, version()))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, "<!doctype html><title>coli</title><p>coli %s<p><a href=\"/metrics\">metrics</a>\n", html.EscapeString(version())) //nolint:errcheck
	})
	s.server = &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       log.New(io.Discard, "", 0), // standard error is the user's
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			say(fmt.Sprintf("metrics are not served any more: %v", err))
		}
	}()
	say(fmt.Sprintf("metrics at http://%s/metrics", l.Addr()))
	return nil
}

// live is the metrics.Source.
func (s *metricsServer) live() (engine.Live, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.model == nil {
		return engine.Live{}, false
	}
	return s.model.Live(), true
}

// show sets the model that is shown, nil for none. One that was shown before may be closed afterwards.
func (s *metricsServer) show(m *engine.Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.model = m
}

// event shows the model of the arm that is measured, and then still the same until another arm's turn comes.
func (s *metricsServer) event(e bench.Event) {
	switch e.Phase {
	case bench.Warming, bench.Measuring:
		s.show(openModel(e.Run))
	case bench.Opening, bench.Closing:
		s.show(nil)
	}
}

func (s *metricsServer) stop([]bench.Record) error { return s.close() }

// close ends the server, with a moment for whoever is asking. It may be called without serve.
func (s *metricsServer) close() error {
	s.show(nil)
	if s.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.server.Close()
	}
	<-s.ended
	return err
}

// metricsAddress is the value of --metrics: host and port.
type metricsAddress string

func (a *metricsAddress) Set(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = "", text
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return errors.New("want a port, 0 to 65535, or an address with one: 9100, 0.0.0.0:9100, [::1]:9100")
	}
	*a = metricsAddress(net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
	return nil
}

func (a *metricsAddress) String() string { return string(*a) }

// Type is what the help calls the value.
func (a *metricsAddress) Type() string { return "address" }
