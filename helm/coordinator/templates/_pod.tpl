{{/* The pod of StatefulSet and Deployment alike. */}}
{{- define "coordinator.pod" -}}
metadata:
  labels:
    {{- include "coordinator.labels" . | nindent 4 }}
    app.kubernetes.io/component: coordinator
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ include "coordinator.settings" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "coordinator.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add (int .Values.drainSeconds) 10 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "coordinator.podSecurity" . | nindent 4 }}
    {{- if or (lt (int .Values.ports.services) 1024) (lt (int .Values.ports.enrolment) 1024) (lt (int .Values.ports.metrics) 1024) }}
    sysctls:
      - name: net.ipv4.ip_unprivileged_port_start
        value: "1"
    {{- end }}
  {{- with (include "coordinator.hosts" . | fromJson).names }}
  # An admin's commands by `kubectl exec` dial the coordinator by its name; here that is the pod itself, and no policy has to let it out.
  hostAliases:
    - ip: 127.0.0.1
      hostnames:
        {{- toYaml . | nindent 8 }}
  {{- end }}
  initContainers:
    - name: init
      image: {{ include "coordinator.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - coordinator
        - init
        - --if-missing
        - --consortium={{ .Values.consortium }}
        {{- range .Values.hosts }}
        - --host={{ . }}
        {{- end }}
        - --port={{ .Values.ports.services }}
        - --enrolment-port={{ .Values.ports.enrolment }}
        - --metrics-listen={{ .Values.listen }}
        - --metrics-port={{ .Values.ports.metrics }}
        - --lease={{ .Values.settings.lease }}
        - --certificate-lifetime={{ .Values.settings.certificateLifetime }}
        - --server-certificate-lifetime={{ .Values.settings.serverCertificateLifetime }}
        - --admin={{ .Values.admin }}
        {{- with .Values.database.url }}
        - --database={{ . }}
        {{- end }}
      env:
        {{- include "coordinator.environment" . | nindent 8 }}
      securityContext:
        {{- include "coordinator.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        {{- include "coordinator.mounts" . | nindent 8 }}
  containers:
    - name: coordinator
      image: {{ include "coordinator.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - coordinator
        - serve
        - --drain={{ .Values.drainSeconds }}
        - --log-level={{ .Values.logLevel }}
      env:
        {{- include "coordinator.environment" . | nindent 8 }}
      ports:
        - name: services
          containerPort: {{ .Values.ports.services }}
        - name: enrolment
          containerPort: {{ .Values.ports.enrolment }}
        - name: metrics
          containerPort: {{ .Values.ports.metrics }}
      startupProbe:
        exec:
          command: [consilium, coordinator, probe]
        periodSeconds: 5
        timeoutSeconds: 10
        # A schema is upgraded before the first answer.
        failureThreshold: {{ divf .Values.startupSeconds 5 | ceil }}
      readinessProbe:
        exec:
          command: [consilium, coordinator, probe]
        periodSeconds: 15
        timeoutSeconds: 10
      livenessProbe:
        exec:
          command: [consilium, coordinator, probe]
        periodSeconds: 30
        timeoutSeconds: 10
        failureThreshold: 6
      securityContext:
        {{- include "coordinator.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        {{- include "coordinator.mounts" . | nindent 8 }}
        - name: settings
          mountPath: /var/lib/consilium/coordinator/coordinator.yaml
          subPath: coordinator.yaml
          readOnly: true
        {{- if include "coordinator.serverSecret" . }}
        # The whole Secret, no subPath: that is what follows a renewal.
        - name: server-certificate
          mountPath: /run/secrets/server
          readOnly: true
        {{- end }}
  volumes:
    {{- if or .Values.database.url .Values.persistence.existingClaim }}
    - name: home
      persistentVolumeClaim:
        claimName: {{ include "coordinator.claim" . }}
    {{- end }}
    - name: settings
      configMap:
        name: {{ include "coordinator.fullname" . }}
    - name: tmp
      emptyDir:
        sizeLimit: {{ .Values.tmpSize }}
    {{- with include "coordinator.serverSecret" . }}
    - name: server-certificate
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- if .Values.database.tls.existingSecret }}
    - name: database-authority
      secret:
        secretName: {{ .Values.database.tls.existingSecret }}
        defaultMode: 0440
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if gt (int .Values.replicas) 1 }}
  topologySpreadConstraints:
    {{- range $key, $when := dict "kubernetes.io/hostname" "DoNotSchedule" "topology.kubernetes.io/zone" "ScheduleAnyway" }}
    - maxSkew: 1
      topologyKey: {{ $key }}
      whenUnsatisfiable: {{ $when }}
      # A tainted node that no replica may use is not one to keep a place on. Servers before 1.26 leave it out.
      nodeTaintsPolicy: Honor
      labelSelector:
        matchLabels:
          {{- include "coordinator.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end -}}
