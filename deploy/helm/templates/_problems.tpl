{{/*
Values that contradict one another, a line each: which keys, what would happen, what to do. What kunicorn can tell by
itself is left to `kunicorn check`; here is what only the chart knows, pods and Kubernetes' own clocks.
*/}}
{{- define "kunicorn.problems" -}}
{{- $settings := include "kunicorn.effective" . | fromJson -}}
{{- $group := $settings.group -}}
{{- $grace := int .Values.terminationGracePeriodSeconds -}}
{{- if not $settings.kafka.bootstrap_servers }}
config.kafka.bootstrap_servers: not set, and the chart has no default; name brokers of yours, such as ["kafka:9092"]
{{- end }}
{{- $assigned := dig "assign" "partitions" nil $settings -}}
{{- if not (or $assigned $group.id) }}
config.group.id: not set, and the chart has no default, as a release could then commit another one's offsets; name the group that this release is, or set config.assign.partitions
{{- end }}
{{- if not (or $assigned $group.topics) }}
config.group.topics: not set, and the chart has no default; name the topics to handle, or give those of each handler in config.handlers
{{- end }}
{{- if not (or $settings.handlers (dig "handler" "entrypoint" "" $settings)) }}
config.handler.entrypoint: not set, and the chart has no default; name the function of your image, such as shop.handlers:handle_order, or put a small one into handlerFiles
{{- end }}
{{- if eq (include "kunicorn.workersPerPod" . | int) 0 }}
config.workers.count: not set, and there is no resources.limits.cpu: the service would start a worker for each CPU of the node, for which no memory is planned; set one of them
{{- end }}
{{- $before := int (((.Values.lifecycle).preStop).sleep).seconds -}}
{{- $stop := add (mul $before 1000) $group.drain_timeout_ms $group.commit_timeout_ms 10000 | int64 -}}
{{- if lt (int64 (mul $grace 1000)) $stop }}
terminationGracePeriodSeconds = {{ $grace }}: shorter than a stop may take, {{ if $before }}lifecycle.preStop.sleep.seconds + {{ end }}config.group.drain_timeout_ms + commit_timeout_ms + 10 s = {{ divf $stop 1000 | ceil | int }} s; Kubernetes would kill the pod with records in hand; raise it, or lower those
{{- end }}
{{- if hasKey $group "group_instance_id" }}
config.group.group_instance_id: all pods would have the same one, and the group accepts one of them; remove it and set membership.static = true, which makes it the pod's name
{{- end }}
{{- range .Values.extraEnv }}
{{- $setting := trimPrefix "KUNICORN_" (toString .name) | lower | replace "__" "." | printf "config.%s" }}
{{- if regexMatch "^KUNICORN_(GROUP__(ID|(DRAIN|COMMIT|SESSION)_TIMEOUT_MS)|HTTP__(ENABLED|HOST|PORT|TLS_CERTIFICATE_FILE)|WORKERS__(COUNT|MEMORY_PER_WORKER_MB|MAX_RSS_MB))$" (toString .name) }}
extraEnv: {{ .name }} is a setting that the chart reckons with; name it as {{ $setting }}, or grace period, memory, probes and alerts would be those of another value
{{- end }}
{{- /* $(NAME) is what another variable has, such as the pod's name. */}}
{{- if and .value (not (contains "$(" (toString .value))) (regexMatch "^KUNICORN_(GROUP__GROUP_INSTANCE_ID|PRODUCING__TRANSACTIONAL_ID_PREFIX)$" (toString .name)) }}
extraEnv: {{ .name }} is the same in all pods, and what {{ $setting }} names is to be one pod's own; remove it, or take the pod's name for it (valueFrom.fieldRef: metadata.name)
{{- end }}
{{- end }}
{{- if dig "producing" "transactional_id_prefix" "" $settings }}
config.producing.transactional_id_prefix: all pods would have the same one, and each would fence the others' producers; remove it: the default is made of the pod's name
{{- end }}
{{- if .Values.membership.static }}
{{- $away := add $grace .Values.membership.restartSeconds | int64 -}}
{{- if le (int64 $group.session_timeout_ms) (mul $away 1000) }}
config.group.session_timeout_ms = {{ int64 $group.session_timeout_ms }}: not above terminationGracePeriodSeconds + membership.restartSeconds = {{ $away }} s, so that a static member would lose its partitions in every restart; raise it above {{ mul $away 1000 }}
{{- end }}
{{- if include "kunicorn.autoscaled" . }}
membership.static beside autoscaling: a member that is scaled away keeps its partitions until its session ends, and nobody handles them; turn off one of them
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.keda.enabled .Values.autoscaling.hpa.enabled }}
autoscaling.keda.enabled and autoscaling.hpa.enabled: two that set the same number of pods; turn off one of them
{{- end }}
{{- if and (include "kunicorn.autoscaled" .) (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
autoscaling.minReplicas = {{ .Values.autoscaling.minReplicas }}: above autoscaling.maxReplicas = {{ .Values.autoscaling.maxReplicas }}; lower it, or raise that
{{- end }}
{{- if and .Values.autoscaling.hpa.enabled (lt (int .Values.autoscaling.minReplicas) 1) }}
autoscaling.minReplicas = 0: a HorizontalPodAutoscaler cannot start the first pod; set 1, or use autoscaling.keda
{{- end }}
{{- $hpa := .Values.autoscaling.hpa -}}
{{- if and $hpa.enabled (not $hpa.metricLabels) $group.id (not (regexMatch "^[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$" $group.id)) }}
config.group.id = {{ $group.id | quote }}: not what Kubernetes takes for a label's value, so that the HPA would find no metric by it; give the metric a label of another value, and name that in autoscaling.hpa.metricLabels
{{- end }}
{{- $scaledDown := int .Values.autoscaling.scaleDownStabilizationSeconds -}}
{{- if and (include "kunicorn.autoscaled" .) (gt $grace 3600) }}
terminationGracePeriodSeconds = {{ $grace }} beside autoscaling: Kubernetes lets a scale-down wait for 3600 s at most, so that pods would go while others still drain; lower it, with config.group.drain_timeout_ms, or turn autoscaling off
{{- else if and (include "kunicorn.autoscaled" .) (lt $scaledDown $grace) }}
autoscaling.scaleDownStabilizationSeconds = {{ $scaledDown }}: shorter than terminationGracePeriodSeconds = {{ $grace }}, so that pods would go while others still drain; raise it
{{- end }}
{{- $workers := mul (include "kunicorn.mostPods" . | int) (include "kunicorn.workersPerPod" . | int) | int -}}
{{- if and .Values.maxPartitions (gt $workers (int .Values.maxPartitions)) }}
maxPartitions = {{ int .Values.maxPartitions }}: fewer than {{ include "kunicorn.mostPods" . }} pods × {{ include "kunicorn.workersPerPod" . }} workers = {{ $workers }}, which would idle; lower {{ if include "kunicorn.autoscaled" . }}autoscaling.maxReplicas{{ else }}replicaCount{{ end }} or config.workers.count, or add partitions
{{- end }}
{{- $limit := dig "limits" "memory" "" .Values.resources -}}
{{- $needed := include "kunicorn.memoryNeeded" . | int64 -}}
{{- if and $limit (lt (include "kunicorn.mebibytes" $limit | int64) $needed) }}
resources.limits.memory = {{ $limit }}: below what the pod needs, ({{ include "kunicorn.workersPerPod" . }} workers + 1 that replaces another) × (config.workers.memory_per_worker_mb + memory.handlerMb) + 150 = {{ $needed }}Mi; the kernel would kill workers; raise it, or lower config.workers.count or those
{{- end }}
{{- range $where, $resources := dict "resources" .Values.resources "pipeline.resources" (default dict .Values.pipeline.resources) }}
{{- range $name, $most := $resources.limits }}
{{- $asked := get (default dict $resources.requests) $name }}
{{- if and $most (gt (include "kunicorn.quantity" $asked | float64) (include "kunicorn.quantity" $most | float64)) }}
{{ $where }}.requests.{{ $name }} = {{ $asked }}: above {{ $where }}.limits.{{ $name }} = {{ $most }}, and Kubernetes would refuse the pods; lower it, or raise that
{{- end }}
{{- end }}
{{- end }}
{{- if $assigned }}
{{- if or .Values.membership.static (include "kunicorn.autoscaled" .) (gt (int .Values.replicaCount) 1) }}
config.assign.partitions: every pod would handle the same partitions; set replicaCount = 1, without membership.static and autoscaling
{{- end }}
{{- if eq (dig "assign" "stop" "never" $settings) "end" }}
config.assign.stop = "end": the pod would be started again for ever after it has reached the end; use pipelines
{{- end }}
{{- end }}
{{- include "kunicorn.changedNumbers" (dict "path" "config" "value" (include "kunicorn.settings" . | fromJson)) }}
{{- if not $settings.http.enabled }}
config.http.enabled = false: there would be no probes; remove it
{{- end }}
{{- if or (eq (int $settings.http.port) 0) (has $settings.http.host (list "127.0.0.1" "localhost" "::1")) }}
config.http.port = {{ int $settings.http.port }} on {{ $settings.http.host }}: the kubelet could not reach the probes; remove http.host, and name a port
{{- end }}
{{- $login := include "kunicorn.kedaLogin" . -}}
{{- if and .Values.autoscaling.keda.enabled $login (not .Values.autoscaling.keda.authenticationRef) }}
{{- $ownLogin := "name a TriggerAuthentication of yours in autoscaling.keda.authenticationRef" }}
{{- if and (eq $login "OAUTHBEARER") (dig "sasl_oauthbearer_token_provider" "" $settings.kafka) }}
config.kafka.sasl_oauthbearer_token_provider: KEDA cannot call it; use sasl_oauthbearer_token_endpoint_url, or {{ $ownLogin }}
{{- else if and (eq $login "OAUTHBEARER") (not .Values.auth.oauthbearer.existingSecret) }}
auth.oauthbearer.existingSecret: KEDA takes the client's secret from a Secret only; name it, or {{ $ownLogin }}
{{- else if and (ne $login "OAUTHBEARER") (not .Values.auth.sasl.existingSecret) }}
auth.sasl.existingSecret: KEDA takes user and password from a Secret only; name it, or {{ $ownLogin }}
{{- end }}
{{- end }}
{{- with .Values.auth.sasl }}
{{- if and .existingSecret $.Values.autoscaling.keda.enabled (not .usernameKey) (not $.Values.autoscaling.keda.authenticationRef) }}
auth.sasl.usernameKey: KEDA takes the user's name from a Secret only; put it into the Secret {{ .existingSecret }} and name its key, or name a TriggerAuthentication of yours in autoscaling.keda.authenticationRef
{{- end }}
{{- end }}
{{- $fullname := include "kunicorn.fullname" . -}}
{{- $lost := include "kunicorn.lostDirectory" . -}}
{{- range $name, $run := .Values.pipelines }}
{{- if and $lost (eq $run.command "stream") }}
pipelines.{{ $name }}: {{ $lost }} is lost with the pod, and the stream's checkpoint with it: each pod would begin where config.group.auto_offset_reset says, and handle records again, or with "latest" leave some out; name a URL, such as s3://orders-runs/streams, or a place in a volume of extraVolumes that outlives the pod
{{- end }}
{{- if and $run.timeZone (not $run.schedule) }}
pipelines.{{ $name }}.timeZone: without pipelines.{{ $name }}.schedule there is no time of day, and the run begins at once; set the schedule, or remove the time zone
{{- end }}
{{- /* A CronJob's Jobs have 11 characters more than it, a Job here has a hash. Kubernetes allows a Job 63. */}}
{{- $most := int (sub (ternary 51 53 (not (empty $run.schedule))) (len $fullname)) }}
{{- if gt (len $name) $most }}
pipelines.{{ $name }}: longer than the {{ $most }} characters that Kubernetes leaves the name of a {{ if $run.schedule }}CronJob{{ else }}Job{{ end }} behind {{ $fullname | quote }}; shorten it
{{- end }}
{{- end }}
{{- range $values := list "commonLabels" "podLabels" }}
{{- range $label, $_ := include "kunicorn.selector" (dict "root" $) | fromYaml }}
{{- if hasKey (get $.Values $values) $label }}
{{ $values }}.{{ $label }}: the chart's own, by which pods are found; choose another label, or set nameOverride
{{- end }}
{{- end }}
{{- end }}
{{- $rule := .Values.prometheusRule -}}
{{- $burning := "KunicornLagBudgetBurning" -}}
{{- $rung := not (or (has $burning $rule.disabled) (dig $burning "expr" "" $rule.overrides)) -}}
{{- if and $rule.enabled $rung (ge (mulf 14.4 (subf 100 $rule.slo.objectivePercent)) 100.0) }}
prometheusRule.slo.objectivePercent = {{ $rule.slo.objectivePercent }}: {{ $burning }} rings at 14.4 times what may be worse for an hour, which would be more than all of it; name 93.1 or more, or put {{ $burning }} into prometheusRule.disabled, or give it an expr of yours in prometheusRule.overrides
{{- end }}
{{- $alerts := list -}}
{{- range (.Files.Get "alerts/rules.yaml" | fromYaml).groups -}}
{{- range .rules -}}{{- $alerts = append $alerts .alert -}}{{- end -}}
{{- end -}}
{{- range $values, $named := dict "disabled" $rule.disabled "overrides" (keys $rule.overrides | sortAlpha) }}
{{- range $named }}
{{- if not (has . $alerts) }}
prometheusRule.{{ $values }}: there is no alert {{ . | quote }}; alerts/rules.yaml of the chart has their names
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}
podMonitor.enabled and serviceMonitor.enabled: each pod would be scraped twice, and each sum of its series would be double, such as the lag that an HPA goes by; turn off one of them
{{- end }}
{{- range $name := list "podMonitor" "serviceMonitor" }}
{{- with get $.Values $name }}
{{- if and .enabled (gt (include "kunicorn.milliseconds" .scrapeTimeout | int64) (include "kunicorn.milliseconds" .interval | int64)) }}
{{ $name }}.scrapeTimeout = {{ .scrapeTimeout }}: longer than {{ $name }}.interval = {{ .interval }}, so that the Prometheus operator would leave the monitor out; lower it, or raise that
{{- end }}
{{- if and .enabled $rule.enabled (gt (include "kunicorn.milliseconds" .interval | int64) 120000) }}
{{ $name }}.interval = {{ .interval }}: Prometheus looks five minutes back, so that one failed scrape would ring KunicornNoMembers; at most 2m, or prometheusRule.enabled=false
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.ingressFrom) }}
networkPolicy.ingressFrom: empty, which Kubernetes takes for everybody, in the cluster and beyond; name Prometheus' namespace, or [{namespaceSelector: {}}] for everybody in the cluster
{{- end }}
{{- if and .Values.auth.schemaRegistry.existingSecret (not (dig "schema_registry" "url" "" $settings)) }}
auth.schemaRegistry.existingSecret: a login for no registry, as config.schema_registry.url is not set; set it, or remove the Secret
{{- end }}
{{- if and .Values.auth.otlp.existingSecret (not (dig "otlp" "enabled" false $settings)) }}
auth.otlp.existingSecret: for no collector, as config.otlp.enabled is not true; set it, or remove the Secret
{{- end }}
{{- end -}}

{{/* Paths of numbers of which Helm, that reads all as float64, may have kept the first digits alone: a line each, of `value`
at `path`. */}}
{{- define "kunicorn.changedNumbers" -}}
{{- $path := .path -}}
{{- if kindIs "map" .value -}}
{{- range $key, $each := .value -}}
{{- include "kunicorn.changedNumbers" (dict "path" (printf "%s.%s" $path $key) "value" $each) -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $number, $each := .value -}}
{{- include "kunicorn.changedNumbers" (dict "path" (printf "%s[%d]" $path $number) "value" $each) -}}
{{- end -}}
{{- else if kindIs "float64" .value -}}
{{- if or (ge .value 9007199254740992.0) (le .value -9007199254740992.0) }}
{{ $path }}: a whole number of 9007199254740992 or more, which Helm does not keep digit for digit; put it in quotes
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Tables of the values that are null, a line each. Every template reads them, and would end with a stack of Helm's own. */}}
{{- define "kunicorn.emptied" -}}
{{- $values := .Values -}}
{{- range $path := list "commonLabels" "commonAnnotations" "podLabels" "image" "config" "auth" "auth.sasl" "auth.oauthbearer" "auth.http"
      "auth.httpTls" "auth.tls" "auth.schemaRegistry" "auth.otlp" "membership" "check" "probes" "probes.startup" "probes.liveness"
      "probes.readiness" "resources" "memory" "tmp" "serviceAccount" "podDisruptionBudget" "autoscaling" "autoscaling.keda"
      "autoscaling.hpa" "service" "podMonitor" "serviceMonitor" "prometheusRule" "prometheusRule.alertLabels" "prometheusRule.overrides"
      "prometheusRule.slo" "dashboard" "networkPolicy" "networkPolicy.brokers" "pipeline" "pipeline.image" "pipeline.tmp" }}
{{- $names := splitList "." $path }}
{{- $above := ternary (get $values (first $names)) $values (gt (len $names) 1) }}
{{- if and (kindIs "map" $above) (not (kindIs "map" (get $above (last $names)))) }}
{{ $path }}: null, as there is nothing below it; remove it, or give it values
{{- end }}
{{- end }}
{{- end -}}

{{- define "kunicorn.refuseProblems" -}}
{{- with include "kunicorn.emptied" . | trim -}}
{{- /* Helm gives a chart the defaults of an older one where it is told to keep values as they were. */ -}}
{{- $kept := "An upgrade with --reuse-values has none that the release's chart did not have; upgrade with --reset-then-reuse-values, or with all values (-f)" -}}
{{- fail (printf "these values are not there:\n%s\n%s" . (ternary $kept "" $.Release.IsUpgrade) | trim) -}}
{{- end -}}
{{- with include "kunicorn.problems" . | trim -}}
{{- fail (printf "these values do not go together:\n%s" .) -}}
{{- end -}}
{{- end -}}
