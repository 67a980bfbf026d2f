{{- define "silo.name" -}}
{{- default "silo" .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "silo.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "silo.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "silo.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes about a pod of this release; `component` is added by each selector. */}}
{{- define "silo.instance" -}}
app.kubernetes.io/name: {{ include "silo.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "silo.labels" -}}
{{ include "silo.instance" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: consilium
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* (list . image) */}}
{{- define "silo.image" -}}
{{- $top := index . 0 -}}{{- $image := index . 1 -}}
{{- $name := $image.repository -}}
{{- with $image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default $top.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The agent's. The trainer's is its own, see service-account.yaml. */}}
{{- define "silo.serviceAccount" -}}
{{- default (include "silo.fullname" .) .Values.serviceAccount.existingName -}}
{{- end -}}

{{- define "silo.trainerAccount" -}}
{{- include "silo.fullname" . }}-trainer
{{- end -}}

{{/* The one claim both pods mount. */}}
{{- define "silo.exchangeClaim" -}}
{{- default (printf "%s-exchange" (include "silo.fullname" .)) .Values.persistence.exchange.existingClaim -}}
{{- end -}}

{{- define "silo.settingsMap" -}}
{{- default (include "silo.fullname" .) .Values.existingConfigMap -}}
{{- end -}}

{{/* A claim of values: {size, storageClassName}. */}}
{{- define "silo.claimSpec" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end -}}

{{/* (list . "identity" "agent"): the claims of a StatefulSet that nobody made beforehand. */}}
{{- define "silo.claimTemplates" -}}
{{- $top := index . 0 -}}
{{- range rest . }}
{{- $claim := index $top.Values.persistence . }}
{{- if not $claim.existingClaim }}
- metadata:
    name: {{ . }}
    labels:
      {{- include "silo.instance" $top | nindent 6 }}
  spec:
    {{- include "silo.claimSpec" $claim | nindent 4 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (list . "identity" "agent"): the volumes of claims that somebody made beforehand. */}}
{{- define "silo.existingClaims" -}}
{{- $top := index . 0 -}}
{{- range $name := rest . }}
{{- with (index $top.Values.persistence $name).existingClaim }}
- name: {{ $name }}
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (list . 10001): the "restricted" profile of the Pod Security Standards. The trainer is user 10001, the agent 10002; both have the
group of the volume they share, also where a kind of volume knows no fsGroup. What each keeps for itself is 0600, in volumes that the
other pod does not mount. */}}
{{- define "silo.podSecurity" -}}
{{- $top := index . 0 -}}
runAsNonRoot: true
runAsUser: {{ index . 1 }}
runAsGroup: 10003
fsGroup: 10003
fsGroupChangePolicy: OnRootMismatch
{{- with $top.Values.seLinuxOptions.level }}
seLinuxOptions:
  level: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "silo.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What every pod of a silo has in common. */}}
{{- define "silo.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* The agent's environment: where its folder is, and the proxy. */}}
{{- define "silo.agentEnvironment" -}}
- name: CONSILIUM_SILO_HOME
  value: /var/lib/consilium/silo
{{- with .Values.proxy }}
{{- if .existingSecret }}
- name: CONSILIUM_PROXY
  value: "@/run/secrets/proxy/{{ .key }}"
{{- else if .url }}
- name: CONSILIUM_PROXY
  value: {{ .url | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "silo.agentMounts" -}}
- name: identity
  mountPath: /var/lib/consilium/silo/identity
- name: agent
  mountPath: /var/lib/consilium/silo/agent
- name: exchange
  mountPath: /var/lib/consilium/silo/exchange
- name: tmp
  mountPath: /tmp
{{- if .Values.proxy.existingSecret }}
- name: proxy
  mountPath: /run/secrets/proxy
  readOnly: true
{{- end }}
{{- end -}}
