{{/* The pod of Deployment and StatefulSet. */}}
{{- define "kunicorn.pod" -}}
metadata:
  labels:
    {{- include "kunicorn.labels" (dict "root" . "labels" .Values.podLabels) | nindent 4 }}
  {{- /* What is in /tmp is nothing to keep: the cluster autoscaler would leave a node alone for it. */}}
  {{- $ours := dict
        "checksum/config" (include "kunicorn.toml" . | sha256sum)
        "checksum/handlers" (toJson .Values.handlerFiles | sha256sum)
        "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes" "tmp" }}
  annotations:
    {{- merge (dict) (default dict .Values.podAnnotations) $ours | toYaml | nindent 4 }}
spec:
  {{- include "kunicorn.podAccount" . | nindent 2 }}
  {{- include "kunicorn.podSettings" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "kunicorn.selector" (dict "root" $) | nindent 10 }}
    {{- end }}
    {{- end }}
  {{- if or .Values.check.enabled .Values.extraInitContainers }}
  initContainers:
    {{- with .Values.extraInitContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if .Values.check.enabled }}
    - name: check
      args: [check, --wait, --config, /etc/kunicorn/config/config.toml]
      {{- include "kunicorn.container" (dict "root" . "image" (include "kunicorn.image" .) "member" true) | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    - name: kunicorn
      args: [run, --config, /etc/kunicorn/config/config.toml]
      {{- include "kunicorn.container" (dict "root" . "image" (include "kunicorn.image" .) "member" true) | nindent 6 }}
      ports:
        - name: http
          containerPort: {{ (include "kunicorn.effective" . | fromJson).http.port | int }}
      {{- with .Values.lifecycle }}
      lifecycle:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      startupProbe:
        httpGet: {path: /livez, port: http, scheme: {{ include "kunicorn.scheme" . }}}
        {{- toYaml .Values.probes.startup | nindent 8 }}
      livenessProbe:
        httpGet: {path: /livez, port: http, scheme: {{ include "kunicorn.scheme" . }}}
        {{- toYaml .Values.probes.liveness | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: http, scheme: {{ include "kunicorn.scheme" . }}}
        {{- toYaml .Values.probes.readiness | nindent 8 }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "kunicorn.volumes" (dict "root" . "tmp" .Values.tmp.sizeLimit) | nindent 4 }}
{{- end -}}

{{- define "kunicorn.podAccount" -}}
serviceAccountName: {{ include "kunicorn.serviceAccountName" . | quote }}
automountServiceAccountToken: {{ .Values.serviceAccount.automountToken }}
{{- end -}}

{{/* What pods of services, pipelines and tests have in common. */}}
{{- define "kunicorn.podSettings" -}}
# Variables made of Services' names are not settings.
enableServiceLinks: false
{{- if not (kindIs "invalid" .Values.hostUsers) }}
hostUsers: {{ .Values.hostUsers }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- range $field := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" "hostAliases" "dnsConfig" }}
{{- with get $.Values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- range $field := list "priorityClassName" "runtimeClassName" "dnsPolicy" }}
{{- with get $.Values $field }}
{{ $field }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The handler may need what they put into a volume, wherever it runs. */}}
{{- define "kunicorn.extraInitContainers" -}}
{{- with .Values.extraInitContainers -}}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
A container that reads the settings. `root` is the chart's context, `image` its image; `member` is set where it joins
the group, or asks as the member that will, `driver` where it runs a pipeline; `resources` are others than the service's,
also where they are none; `scratch` is another name of the volume at /tmp.
*/}}
{{- define "kunicorn.container" -}}
{{- $values := .root.Values -}}
image: {{ .image | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
securityContext:
  {{- toYaml $values.securityContext | nindent 2 }}
{{- with include "kunicorn.env" . | trim }}
env:
  {{- . | nindent 2 }}
{{- end }}
{{- with $values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- if hasKey . "resources" }}
  {{- include "kunicorn.amounts" (dict "resources" (deepCopy (default dict .resources)) "disk" .root.Values.pipeline.tmp.sizeLimit) | nindent 2 }}
  {{- else }}
  {{- include "kunicorn.resources" .root | nindent 2 }}
  {{- end }}
volumeMounts:
  - {name: config, mountPath: /etc/kunicorn/config, readOnly: true}
  - {name: {{ .scratch | default "tmp" }}, mountPath: /tmp}
  {{- if and .driver (include "kunicorn.executorPods" .root) }}
  - {name: spark, mountPath: /etc/kunicorn/spark, readOnly: true}
  {{- end }}
  {{- if include "kunicorn.handlerFiles" .root }}
  - {name: handlers, mountPath: /etc/kunicorn/handlers, readOnly: true}
  {{- end }}
  {{- range $name, $auth := $values.auth }}
  {{- if $auth.existingSecret }}
  - {name: {{ kebabcase $name }}, mountPath: /etc/kunicorn/{{ kebabcase $name }}, readOnly: true}
  {{- end }}
  {{- end }}
  {{- with $values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "kunicorn.env" -}}
{{- $values := .root.Values -}}
{{- if and .member $values.membership.static }}
- name: KUNICORN_GROUP__GROUP_INSTANCE_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
{{- if .driver }}
- name: JOB_NAME
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}
{{- if include "kunicorn.executorPods" .root }}
- {name: SPARK_CONF_DIR, value: /etc/kunicorn/spark}
# Executors find the driver by its address: a pod's name is known to nobody.
- name: SPARK_LOCAL_HOSTNAME
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
{{- end }}
{{- if include "kunicorn.handlerFiles" .root }}
- {name: PYTHONPATH, value: "/etc/kunicorn/handlers:/app"}
{{- end }}
{{- with $values.auth.sasl }}
{{- if and .existingSecret .usernameKey }}
- name: KUNICORN_KAFKA__SASL_USERNAME
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .usernameKey | quote }}}}
{{- end }}
{{- end }}
{{- with $values.auth.oauthbearer }}
{{- if and .existingSecret .clientIdKey }}
- name: KUNICORN_KAFKA__SASL_OAUTHBEARER_CLIENT_ID
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .clientIdKey | quote }}}}
{{- end }}
{{- end }}
{{- with $values.auth.schemaRegistry }}
{{- if and .existingSecret .usernameKey }}
- name: KUNICORN_SCHEMA_REGISTRY__USERNAME
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .usernameKey | quote }}}}
{{- end }}
{{- end }}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Volumes; `tmp` is the size of /tmp, `scratch` another name of it. */}}
{{- define "kunicorn.volumes" -}}
{{- $values := .root.Values -}}
- name: config
  configMap: {name: {{ include "kunicorn.fullname" .root | quote }}}
- name: {{ .scratch | default "tmp" }}
  emptyDir: {sizeLimit: {{ .tmp | quote }}}
{{- if include "kunicorn.handlerFiles" .root }}
- name: handlers
  configMap: {name: {{ include "kunicorn.fullname" .root }}-handlers}
{{- end }}
{{- range $name, $auth := $values.auth }}
{{- with $auth.existingSecret }}
- name: {{ kebabcase $name }}
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Files that are not null, as YAML; empty without any. */}}
{{- define "kunicorn.handlerFiles" -}}
{{- $files := dict -}}
{{- range $name, $content := .Values.handlerFiles -}}
{{- if not (kindIs "invalid" $content) -}}
{{- $_ := set $files $name $content -}}
{{- end -}}
{{- end -}}
{{- if $files }}{{ toYaml $files }}{{ end -}}
{{- end -}}
