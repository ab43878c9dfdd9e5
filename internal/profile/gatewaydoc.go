package profile

// gatewayDoc is a configuration file of the gateway system.
type gatewayDoc struct {
	Tools struct {
		Bash       gatewayBash    `json:"bash"`
		Filesystem gatewayFiles   `json:"filesystem"`
		HTTP       gatewayHTTP    `json:"http"`
		Browser    gatewayBrowser `json:"browser"`
		Sandbox    gatewaySandbox `json:"sandbox"`
	} `json:"tools"`
	Approval struct {
		Rules []gatewayRule `json:"rules"`
	} `json:"approval"`
	Policy struct {
		Enabled        map[string]bool         `json:"enabled"`
		RateLimits     map[string]gatewayRate  `json:"rateLimits"`
		ResourceLimits map[string]gatewayLimit `json:"resourceLimits"`
	} `json:"policy"`
}

type gatewayBash struct {
	Enabled            *bool     `json:"enabled"`
	AllowedCommands    *[]string `json:"allowedCommands"`
	DeniedCommands     []string  `json:"deniedCommands"`
	AllowedDirectories *[]string `json:"allowedDirectories"`
	TimeoutMS          int64     `json:"timeoutMs"`
	MaxOutputBytes     int64     `json:"maxOutputBytes"`
}

type gatewayFiles struct {
	Enabled            *bool     `json:"enabled"`
	AllowedDirectories *[]string `json:"allowedDirectories"`
	ReadOnly           bool      `json:"readOnly"`
	MaxFileSize        int64     `json:"maxFileSize"`
	FollowSymlinks     *bool     `json:"followSymlinks"`
}

type gatewayHTTP struct {
	Enabled         *bool    `json:"enabled"`
	AllowedDomains  []string `json:"allowedDomains"`
	BlockedDomains  []string `json:"blockedDomains"`
	TimeoutMS       int64    `json:"timeoutMs"`
	MaxResponseSize int64    `json:"maxResponseSize"`
	AllowedMethods  []string `json:"allowedMethods"`
}

type gatewayBrowser struct {
	Enabled          *bool    `json:"enabled"`
	Mode             string   `json:"mode"`
	TimeoutMS        int64    `json:"timeoutMs"`
	MaxContentLength int64    `json:"maxContentLength"`
	AllowedDomains   []string `json:"allowedDomains"`
}

type gatewaySandbox struct {
	Enabled      *bool             `json:"enabled"`
	Image        string            `json:"image"`
	NetworkMode  string            `json:"networkMode"`
	MemoryLimit  string            `json:"memoryLimit"`
	CPULimit     float64           `json:"cpuLimit"`
	VolumeMounts map[string]string `json:"volumeMounts"`
}

type gatewayRule struct {
	ToolName     string   `json:"toolName"`
	Action       string   `json:"action"`
	Condition    string   `json:"condition"`
	BudgetLimit  *float64 `json:"budgetLimit"`
	BudgetPeriod string   `json:"budgetPeriod"`
	BudgetField  string   `json:"budgetField"`
}

type gatewayRate struct {
	MaxCalls int   `json:"maxCalls"`
	WindowMS int64 `json:"windowMs"`
}

type gatewayLimit struct {
	MaxDuration int64   `json:"maxDuration"` // milliseconds
	MaxMemory   int64   `json:"maxMemory"`   // bytes
	MaxCPU      float64 `json:"maxCpu"`
}
