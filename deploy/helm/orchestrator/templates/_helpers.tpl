{{- define "orchestrator.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "orchestrator.selector" -}}
app.kubernetes.io/name: orchestrator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "orchestrator.labels" -}}
{{ include "orchestrator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "orchestrator.image" -}}
{{ required "image.repository is required: the image that docker/orchestrator/Dockerfile builds" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "orchestrator.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "orchestrator.name" .) }}
{{- end -}}

{{- define "orchestrator.sandboxes" -}}
{{- $namespace := .Values.sandboxes.namespace | default (printf "%s-sandboxes" (include "orchestrator.name" .)) -}}
{{- if eq $namespace .Release.Namespace -}}
{{- fail "sandboxes.namespace must not be the release's namespace: it is for sandboxes only" -}}
{{- end -}}
{{- $namespace -}}
{{- end -}}

{{- define "orchestrator.secret" -}}
{{ .Values.token.existingSecret | default (printf "%s-token" (include "orchestrator.name" .)) }}
{{- end -}}

{{/* The access mode of the volume of the service's state. */}}
{{- define "orchestrator.accessMode" -}}
{{ .Values.persistence.accessMode | default (eq (int .Values.replicas) 2 | ternary "ReadWriteMany" "ReadWriteOnce") }}
{{- end -}}

{{/* The specification of a claim for the service's state. */}}
{{- define "orchestrator.claim" -}}
accessModes: [{{ include "orchestrator.accessMode" . }}]
{{- if not (kindIs "invalid" .Values.persistence.storageClass) }}
storageClassName: {{ .Values.persistence.storageClass | quote }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.persistence.size }}
{{- end -}}

{{/* Where the two pods of a service with a standby run: on two nodes if possible, or on the one that has the volume. */}}
{{- define "orchestrator.affinity" -}}
{{- if eq (include "orchestrator.accessMode" .) "ReadWriteOnce" -}}
podAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "orchestrator.selector" . | nindent 10 }}
{{- else -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "orchestrator.selector" . | nindent 12 }}
{{- end -}}
{{- end -}}

{{- define "orchestrator.config" -}}
{{- $pod := dict -}}
{{- if .Values.image.pullSecrets -}}
{{- $_ := set $pod "image_pull_secrets" .Values.image.pullSecrets -}}
{{- end -}}
{{- $cluster := dict "namespace" (include "orchestrator.sandboxes" .) "network" .Values.sandboxes.network -}}
{{- $_ := set $cluster "guest_image" (.Values.guestImage | default (include "orchestrator.image" .)) -}}
{{- $_ := set $cluster "pull_policy" .Values.image.pullPolicy -}}
{{- if $pod -}}{{- $_ := set $cluster "pod" $pod -}}{{- end -}}
{{- $set := dict "listen" (printf "0.0.0.0:%d" (int .Values.port)) "allow_remote" true -}}
{{- $_ := set $set "token_file" "/etc/orchestrator/token/token" -}}
{{- $_ := set $set "state_dir" "/var/lib/orchestrator/state" -}}
{{- $_ := set $set "runtime" "kubernetes" -}}
{{- $_ := set $set "kubernetes" $cluster -}}
{{- with .Values.serviceMonitor -}}
{{- if .enabled -}}
{{- $listen := printf "0.0.0.0:%d" (int .port) -}}
{{- $_ := set $set "metrics" (dict "listen" $listen "token_file" "/etc/orchestrator/token/metrics") -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) $set | toYaml -}}
{{- end -}}

{{/* Fails if a template needs agent-sandbox without permissions for it. */}}
{{- define "orchestrator.checkProviders" -}}
{{- $kubernetes := dig "kubernetes" dict .Values.config -}}
{{- range append (values (dig "pods" dict $kubernetes)) (dig "pod" dict $kubernetes) -}}
{{- if and (dig "provider" "" .) (not $.Values.sandboxes.agentSandbox) -}}
{{- fail "provider: agent-sandbox needs sandboxes.agentSandbox: true" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The names of the storage classes that workspaces use, as a JSON array. */}}
{{- define "orchestrator.storageClasses" -}}
{{- $kubernetes := dig "kubernetes" dict .Values.config -}}
{{- $pods := append (values (dig "pods" dict $kubernetes)) (dig "pod" dict $kubernetes) -}}
{{- $names := list -}}
{{- range $pods -}}
{{- $names = append $names (dig "workspace" "storage_class" "" .) -}}
{{- end -}}
{{- $names | compact | uniq | sortAlpha | toJson -}}
{{- end -}}
