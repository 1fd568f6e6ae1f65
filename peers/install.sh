#!/usr/bin/env bash
# Downloads the groups that `mainstay bench patterns --peers DIR` measures beside ours, and compiles the small programs that drive them.
# Artifacts come from the registry that the user's Maven settings name; nothing of them becomes a part of Mainstay.
#
#   peers/install.sh DIR          needs Java 17 (JDK) and Maven; for etcd also Go and etcd itself (Debian: etcd-server)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
into=${1:?usage: peers/install.sh DIR}
jgroups=${JGROUPS_VERSION:-5.3.18.Final}
geode=${GEODE_VERSION:-1.15.1}
etcd_client=${ETCD_CLIENT_VERSION:-3.5.17}
for program in javac mvn; do
  command -v "$program" > /dev/null || { echo "$program is missing: install a JDK (17) and Maven" >&2; exit 3; }
done
mkdir -p "$into"

# install NAME GROUP:ARTIFACT:VERSION...: the artifacts with all that they depend on, in DIR/NAME.
install() {
  local name=$1 folder="$into/$1" artifact group id version
  shift
  [ -e "$folder/complete" ] && [ "$(cat "$folder/complete")" = "$*" ] && return
  rm -rf "$folder"
  mkdir -p "$folder"
  {
    echo '<project><modelVersion>4.0.0</modelVersion><groupId>mainstay</groupId><artifactId>peers</artifactId><version>1</version><dependencies>'
    for artifact in "$@"; do
      IFS=: read -r group id version <<< "$artifact"
      echo "<dependency><groupId>$group</groupId><artifactId>$id</artifactId><version>$version</version></dependency>"
    done
    echo '</dependencies></project>'
  } > "$folder/pom.xml"
  (cd "$folder" && mvn --quiet --batch-mode --no-transfer-progress dependency:copy-dependencies -DoutputDirectory=jars -DincludeScope=runtime)
  cp "$here/$name"/*.xml "$folder/" 2> /dev/null || true
  javac -cp "$folder/jars/*" -d "$folder" "$here/$name"/*.java
  echo "$*" > "$folder/complete"
}

install jgroups "org.jgroups:jgroups:$jgroups"
install geode "org.apache.geode:geode-core:$geode" "org.apache.geode:geode-cq:$geode"
with_etcd="without etcd: go is missing"
if command -v go > /dev/null; then
  folder="$into/etcd"
  if [ "$(cat "$folder/complete" 2> /dev/null)" != "$etcd_client" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    cp "$here/etcd/main.go" "$folder/"
    (cd "$folder" && go mod init etcd-client && go get "go.etcd.io/etcd/client/v3@v$etcd_client" && go build -o client .) 2> "$folder/log" ||
      { cat "$folder/log" >&2; exit 1; }
    echo "$etcd_client" > "$folder/complete"
  fi
  with_etcd="etcd's client $etcd_client"
fi
echo "$with_etcd;"
echo "jgroups $jgroups and geode $geode are in $into"
