{{/* coordinator.yaml as `consilium coordinator serve` reads it. */}}
{{- define "coordinator.settings" -}}
consortium: {{ .Values.consortium | quote }}
hosts:
  {{- toYaml .Values.hosts | nindent 2 }}
listen: {{ .Values.listen | quote }}
port: {{ .Values.ports.services }}
enrolment_port: {{ .Values.ports.enrolment }}
metrics_listen: {{ .Values.listen | quote }}
metrics_port: {{ .Values.ports.metrics }}
metrics_per_silo: {{ .Values.settings.metricsPerSilo }}
database: {{ .Values.database.url | quote }}
lease: {{ .Values.settings.lease }}
certificate_lifetime: {{ .Values.settings.certificateLifetime }}
server_certificate_lifetime: {{ .Values.settings.serverCertificateLifetime }}
{{- if include "coordinator.serverSecret" . }}
server_certificate_folder: /run/secrets/server
{{- end }}
{{- with .Values.settings.limits }}
limits:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
