#!/usr/bin/env bash
# Prints the manifests of deploy/helm/orchestrator with default values, for clusters without Helm. "make manifests" writes
# them to deploy/kubernetes.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cat <<'TEXT'
# Made by "make manifests" from deploy/helm/orchestrator. Replace the image and the template's image, make the namespace
# and the token, then apply it:
#
#     kubectl create namespace orchestrator
#     kubectl --namespace orchestrator create secret generic orchestrator-token --from-literal=token="$(openssl rand -hex 32)"
#     kubectl apply --filename deploy/kubernetes/orchestrator.yaml
TEXT
"$("$ROOT/integration/scripts/kubernetes.sh" helm)" template orchestrator "$ROOT/deploy/helm/orchestrator" \
    --namespace orchestrator --set image.repository=registry.example.com/orchestrator,token.existingSecret=orchestrator-token \
    --set config.templates.default.image=registry.example.com/sandbox:1 |
    sed -e '/^# Source: /d' -e '/managed-by: Helm/d' -e '/helm.sh\/chart:/d'
