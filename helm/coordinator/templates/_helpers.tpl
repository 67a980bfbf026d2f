{{- define "coordinator.name" -}}
{{- default "coordinator" .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "coordinator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "coordinator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "coordinator.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes about a pod of this release; `component` is added by each selector. */}}
{{- define "coordinator.instance" -}}
app.kubernetes.io/name: {{ include "coordinator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "coordinator.labels" -}}
{{ include "coordinator.instance" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: consilium
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "coordinator.selector" -}}
{{ include "coordinator.instance" . }}
app.kubernetes.io/component: coordinator
{{- end -}}

{{- define "coordinator.image" -}}
{{- $name := .Values.image.repository -}}
{{- with .Values.image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "coordinator.serviceAccount" -}}
{{- default (include "coordinator.fullname" .) .Values.serviceAccount.existingName -}}
{{- end -}}

{{- define "coordinator.claim" -}}
{{- default (printf "%s-home" (include "coordinator.fullname" .)) .Values.persistence.existingClaim -}}
{{- end -}}

{{- define "coordinator.claimSpec" -}}
accessModes:
  # By the database, not by the number of replicas: it cannot be changed, and one replica may become three.
  - {{ default (ternary "ReadWriteOnce" "ReadWriteMany" (empty .Values.database.url)) .Values.persistence.accessMode }}
{{- with .Values.persistence.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.persistence.size }}
{{- end -}}

{{/* `hosts` as {names, addresses}. */}}
{{- define "coordinator.hosts" -}}
{{- $hosts := dict "names" list "addresses" list -}}
{{- range .Values.hosts -}}
{{- $kind := ternary "addresses" "names" (regexMatch "^[0-9.]+$|:" .) -}}
{{- $_ := set $hosts $kind (append (index $hosts $kind) .) -}}
{{- end -}}
{{- toJson $hosts -}}
{{- end -}}

{{/* Where names are asked for, as a rule of a NetworkPolicy. */}}
{{- define "coordinator.toDns" -}}
- ports:
    {{- range .Values.networkPolicy.dns.ports }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.dns.to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* The Secret in which the server's certificate is brought; empty if the coordinator makes it. */}}
{{- define "coordinator.serverSecret" -}}
{{- with .Values.serverCertificate -}}
{{- ternary (printf "%s-server" (include "coordinator.fullname" $)) .existingSecret .certManager.enabled -}}
{{- end -}}
{{- end -}}

{{/* How long the server's certificate is valid, in hours. */}}
{{- define "coordinator.serverHours" -}}
{{- $life := .Values.settings.serverCertificateLifetime -}}
{{- $unit := regexFind "[a-z]+$" $life -}}
{{- $seconds := index (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0) $unit -}}
{{- printf "%g" (divf (mulf (trimSuffix $unit $life | float64) $seconds) 3600.0) -}}
{{- end -}}

{{/* The "restricted" profile of the Pod Security Standards, and a read-only root. */}}
{{- define "coordinator.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "coordinator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* libpq's own variables: the password is in no URL, no file and no release. */}}
{{- define "coordinator.environment" -}}
- name: CONSILIUM_HOME
  value: /var/lib/consilium/coordinator
{{- with .Values.database }}
{{- if .existingSecret }}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .passwordKey }}
{{- end }}
{{- if .tls.existingSecret }}
- name: PGSSLMODE
  value: verify-full
- name: PGSSLROOTCERT
  value: /run/secrets/database/{{ .tls.key }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "coordinator.mounts" -}}
- name: home
  mountPath: /var/lib/consilium/coordinator
- name: tmp
  mountPath: /tmp
{{- if .Values.database.tls.existingSecret }}
- name: database-authority
  mountPath: /run/secrets/database
  readOnly: true
{{- end }}
{{- end -}}
