package standalone

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func TestJSONLogHasDurationsWithUnits(t *testing.T) {
	var b bytes.Buffer
	Logger(&b, config.Log{Level: "info", Format: "json"}).Info("request", "took", 1500*time.Millisecond, "n", 3)
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil || line["took"] != "1.5s" || line["n"] != 3.0 {
		t.Errorf("log line = %s, %v; want took 1.5s and n 3", b.Bytes(), err)
	}
}
