{{/* The settings as kunicorn will read them: config, and the paths of what auth mounts. As JSON, for fromJson. */}}
{{- define "kunicorn.settings" -}}
{{- $mounted := dict "kafka" dict "http" dict "schema_registry" dict "otlp" dict -}}
{{- range $auth, $paths := dict
      "sasl" (dict "kafka.sasl_password_file" "passwordKey")
      "oauthbearer" (dict "kafka.sasl_oauthbearer_client_secret_file" "clientSecretKey")
      "tls" (dict "kafka.ssl_ca_location" "caKey" "kafka.ssl_certificate_location" "certKey" "kafka.ssl_key_location" "keyKey" "kafka.ssl_key_password_file" "keyPasswordKey")
      "http" (dict "http.token_file" "tokenKey")
      "httpTls" (dict "http.tls_certificate_file" "certKey" "http.tls_key_file" "keyKey")
      "schemaRegistry" (dict "schema_registry.password_file" "passwordKey" "schema_registry.ssl_ca_location" "caKey" "schema_registry.ssl_certificate_location" "certKey" "schema_registry.ssl_key_location" "keyKey")
      "otlp" (dict "otlp.headers_file" "headersKey" "otlp.ssl_ca_location" "caKey" "otlp.ssl_certificate_location" "certKey" "otlp.ssl_key_location" "keyKey") -}}
{{- $secret := get $.Values.auth $auth -}}
{{- range $setting, $key := $paths -}}
{{- if and $secret.existingSecret (get $secret $key) -}}
{{- $name := splitList "." $setting -}}
{{- $_ := set (get $mounted (first $name)) (last $name) (printf "/etc/kunicorn/%s/%s" (kebabcase $auth) (get $secret $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) $mounted | toJson -}}
{{- end -}}

{{/* What holds where config says nothing: the defaults are kunicorn's own (settings-defaults.json is generated). */}}
{{- define "kunicorn.effective" -}}
{{- $effective := mergeOverwrite (.Files.Get "settings-defaults.json" | fromJson) (include "kunicorn.settings" . | fromJson) -}}
{{- if and $effective.handlers (not $effective.group.topics) -}}
{{- $topics := list -}}
{{- range $effective.handlers -}}
{{- $topics = concat $topics .topics -}}
{{- end -}}
{{- $_ := set $effective.group "topics" (uniq $topics) -}}
{{- end -}}
{{- if and (dig "assign" "partitions" nil $effective) (not $effective.group.id) -}}
{{- /* What the series have for a group without one (CLIENTS_GROUP). */ -}}
{{- $_ := set $effective.group "id" "kunicorn-assign" -}}
{{- end -}}
{{- $effective | toJson -}}
{{- end -}}

{{/* config.toml. Helm's own toToml writes whole numbers as 9400.0, which kunicorn refuses. */}}
{{- define "kunicorn.toml" -}}
{{- $settings := include "kunicorn.settings" . | fromJson -}}
{{- range $section := keys $settings | sortAlpha }}
{{- $table := get $settings $section }}
{{- if kindIs "slice" $table }}
{{- range $each := $table }}
[[{{ $section }}]]
{{- range $name := keys $each | sortAlpha }}
{{- $value := get $each $name }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ include "kunicorn.toml.value" $value }}
{{- end }}
{{- end }}
{{ end }}
{{- else if $table }}
[{{ $section }}]
{{- range $name := keys $table | sortAlpha }}
{{- $value := get $table $name }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ include "kunicorn.toml.value" $value }}
{{- end }}
{{- end }}
{{ end -}}
{{- end -}}
{{- end -}}

{{/* One value. JSON's texts and truth values are TOML's; tables are inline. */}}
{{- define "kunicorn.toml.value" -}}
{{- if kindIs "map" . -}}
{{- $items := list -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $items = append $items (printf "%s = %s" (toJson $key) (include "kunicorn.toml.value" $value)) -}}
{{- end -}}
{{- end -}}
{ {{- join ", " $items -}} }
{{- else if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . -}}
{{- $items = append $items (include "kunicorn.toml.value" .) -}}
{{- end -}}
[{{ join ", " $items }}]
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{/* How the port is asked: HTTP or HTTPS. */}}
{{- define "kunicorn.scheme" -}}
{{- ternary "HTTPS" "HTTP" (not (empty (dig "http" "tls_certificate_file" "" (include "kunicorn.effective" . | fromJson)))) -}}
{{- end -}}

{{/* What a monitor scrapes. `root` is the chart's context, `monitor` its values. */}}
{{- define "kunicorn.endpoint" -}}
- port: http
  path: /metrics
  interval: {{ .monitor.interval }}
  scrapeTimeout: {{ .monitor.scrapeTimeout }}
  {{- if eq (include "kunicorn.scheme" .root) "HTTPS" }}
  scheme: https
  tlsConfig:
    {{- .monitor.tlsConfig | default (dict "insecureSkipVerify" true) | toYaml | nindent 4 }}
  {{- end }}
  relabelings:
    # What the rules of this release select by.
    - {targetLabel: release, replacement: {{ include "kunicorn.fullname" .root | quote }}}
{{- end -}}

{{/* Worker processes of one pod, as the service counts them: workers.count, else the CPU limit rounded up. 0 without
both: the service would count the node's CPUs, and `kunicorn.problems` refuses that. */}}
{{- define "kunicorn.workersPerPod" -}}
{{- $settings := include "kunicorn.effective" . | fromJson -}}
{{- if dig "workers" "count" nil $settings -}}
{{- int $settings.workers.count -}}
{{- else -}}
{{- include "kunicorn.cpus" (dig "limits" "cpu" "" .Values.resources) -}}
{{- end -}}
{{- end -}}

{{/* A quantity of CPU, rounded up to whole ones: 3, 0.5 or 500m. 0 where there is none. */}}
{{- define "kunicorn.cpus" -}}
{{- include "kunicorn.quantity" . | float64 | ceil | int -}}
{{- end -}}

{{/* Ports of the brokers: those of bootstrap_servers, and those that networkPolicy names. As a JSON array. */}}
{{- define "kunicorn.brokerPorts" -}}
{{- $ports := list -}}
{{- range (include "kunicorn.effective" . | fromJson).kafka.bootstrap_servers -}}
{{- $ports = append $ports (regexFind "[0-9]+$" . | int) -}}
{{- end -}}
{{- range .Values.networkPolicy.brokers.ports -}}
{{- $ports = append $ports (int .) -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}

{{/* Ports of the URLs that the service asks beside the brokers. As a JSON array. */}}
{{- define "kunicorn.urlPorts" -}}
{{- $settings := include "kunicorn.effective" . | fromJson -}}
{{- $ports := list -}}
{{- $collector := ternary (dig "otlp" "endpoint" "" $settings) "" (dig "otlp" "enabled" false $settings) -}}
{{- range list (dig "schema_registry" "url" "" $settings) (dig "kafka" "sasl_oauthbearer_token_endpoint_url" "" $settings) $collector -}}
{{- if . -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- $ports = append $ports (default (ternary 443 80 (eq $url.scheme "https")) ($port | int)) -}}
{{- end -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}

{{/* Milliseconds of a duration as Prometheus writes it, such as 1m30s. */}}
{{- define "kunicorn.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $sum = add $sum (mul (trimSuffix $unit . | int64) (get $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* A quantity of memory in MiB, rounded down. */}}
{{- define "kunicorn.mebibytes" -}}
{{- divf (include "kunicorn.quantity" . | float64) 1048576.0 | floor | int64 -}}
{{- end -}}

{{/* The number that a quantity of Kubernetes is: 1.5Gi, 512Mi, 2G, 500m or bytes. 0 where there is none. */}}
{{- define "kunicorn.quantity" -}}
{{- $units := dict "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "k" 1000.0 "M" 1000000.0 "G" 1000000000.0 "T" 1000000000000.0 -}}
{{- $text := default "" . | toString -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- $number := trimSuffix $unit $text | float64 -}}
{{- if eq $unit "m" }}{{ divf $number 1000 }}{{ else }}{{ mulf $number (default 1.0 (get $units $unit)) }}{{ end -}}
{{- end -}}

{{/* MiB that a pod of the service needs: every worker with its handler, one that replaces another, and the rest. */}}
{{- define "kunicorn.memoryNeeded" -}}
{{- $workers := (include "kunicorn.effective" . | fromJson).workers -}}
{{- $each := add $workers.memory_per_worker_mb .Values.memory.handlerMb | int64 -}}
{{- if $workers.max_rss_mb -}}
{{- $each = max $each (int64 $workers.max_rss_mb) -}}
{{- end -}}
{{- add (mul (include "kunicorn.workersPerPod" . | int | add1) $each) 150 -}}
{{- end -}}

{{/* The service's resources, with the memory that it needs where the values give none. A request of theirs that is larger is
the limit, too. */}}
{{- define "kunicorn.resources" -}}
{{- $needed := include "kunicorn.memoryNeeded" . -}}
{{- $given := default dict .Values.resources.requests -}}
{{- $requests := merge (deepCopy $given) (dict "memory" (printf "%sMi" $needed)) -}}
{{- $limits := deepCopy (default dict .Values.resources.limits) -}}
{{- if and .Values.memory.limited (not $limits.memory) -}}
{{- /* What is asked for may be more, and Kubernetes refuses a limit below it. */ -}}
{{- $asked := include "kunicorn.quantity" $given.memory | float64 -}}
{{- $_ := set $limits "memory" (ternary $requests.memory (printf "%sMi" $needed) (gt $asked (mulf $needed 1048576.0))) -}}
{{- end -}}
{{- $resources := merge (dict "requests" $requests "limits" $limits) .Values.resources -}}
{{- include "kunicorn.amounts" (dict "resources" $resources "disk" .Values.tmp.sizeLimit) -}}
{{- end -}}

{{/* `resources` as YAML, without those that are null: `--set resources.limits.cpu=null` stays so where the chart gives no
limit, and Kubernetes would read it as none at all, 0. `disk` is asked for where they have no limit of it: Kubernetes takes
theirs for the request, too, and refuses one above it. */}}
{{- define "kunicorn.amounts" -}}
{{- $resources := .resources -}}
{{- if not (get (default dict $resources.limits) "ephemeral-storage") -}}
{{- $resources = merge $resources (dict "requests" (dict "ephemeral-storage" .disk)) -}}
{{- end -}}
{{- range $resources -}}
{{- if kindIs "map" . -}}
{{- $amounts := . -}}
{{- range $name, $amount := $amounts -}}
{{- if kindIs "invalid" $amount -}}{{- $_ := unset $amounts $name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "kunicorn.mostPods" -}}
{{- if include "kunicorn.autoscaled" . }}{{ int .Values.autoscaling.maxReplicas }}{{ else }}{{ int .Values.replicaCount }}{{ end -}}
{{- end -}}
