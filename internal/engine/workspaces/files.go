package workspaces

import (
	"fmt"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
)

func presentInfo(i safefile.Info) v1.File {
	return v1.File{
		Name: i.Name, Path: i.Path, Type: i.Type, Size: i.Size, Mode: fmt.Sprintf("%04o", i.Mode), UID: i.UID, GID: i.GID,
		ModTime: i.ModTime, Target: i.Target,
	}
}
