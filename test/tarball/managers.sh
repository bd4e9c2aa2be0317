#!/usr/bin/env bash
# Installs the packages by pnpm and by both kinds of Yarn, runs them from folders that nobody may
# write, and beside a bundled program: managers.sh NPMRC, in an empty folder. NPMRC names the
# registry that has the packages.
set -euo pipefail
npmrc=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$PWD
addon="@ds/native-linux-$(node -p process.arch)"
registry=$(sed -n 's/^@ds:registry=//p' "$npmrc")

mkdir tools
echo '{ "private": true }' >tools/package.json
npm install --prefix tools --ignore-scripts --no-fund --no-audit --silent \
  yarn@1.22.22 pnpm@10 @yarnpkg/cli-dist@4 esbuild@0.28
# What the managers keep stays in this folder.
export npm_config_store_dir=$work/store npm_config_cache=$work/cache YARN_CACHE_FOLDER=$work/yarn-cache
export YARN_GLOBAL_FOLDER=$work/yarn YARN_ENABLE_TELEMETRY=0 YARN_ENABLE_IMMUTABLE_INSTALLS=false
pnpm() { node "$work/tools/node_modules/pnpm/bin/pnpm.cjs" "$@"; }
classic() { node "$work/tools/node_modules/yarn/bin/yarn.js" "$@"; }
berry() { node "$work/tools/node_modules/@yarnpkg/cli-dist/bin/yarn.js" "$@"; }

# project NAME: an empty project with the programs of test/tarball.
project() {
  echo "-- $1"
  mkdir "$work/$1"
  cd "$work/$1"
  echo '{ "name": "consumer", "private": true, "dependencies": { "@ds/native": "*" } }' >package.json
  cp "$npmrc" .npmrc
  cp "$here"/{require,train,ranks}.cjs "$here"/import.mjs .
}
# quiet COMMAND...: shows its output only if it fails.
quiet() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; echo "failed: $*" >&2; return 1; }; }
# works NODE...: the programs run.
works() {
  quiet "$@" require.cjs
  quiet "$@" import.mjs
  "$@" train.cjs
}

project pnpm
quiet pnpm install
works node
quiet pnpm exec ds env
grep -q "^addon .*, of $addon " "$work/log"
pnpm exec ds --num_procs 2 ranks.cjs

project yarn-classic
quiet classic install --non-interactive
works node
quiet classic --silent ds env
grep -q "^addon .*, of $addon " "$work/log"
classic --silent ds --num_procs 2 ranks.cjs

# Yarn 4 by node_modules, and by Plug'n'Play, which unpacks only packages with addons. By default it
# installs no version of today.
for linker in node-modules pnp; do
  project "yarn-$linker"
  touch yarn.lock
  printf 'nodeLinker: %s\nnpmScopes:\n  ds:\n    npmRegistryServer: "%s"\n    npmMinimalAgeGate: 0\nunsafeHttpWhitelist: ["127.0.0.1"]\n' \
    "$linker" "${registry%/}" >.yarnrc.yml
  quiet berry install
  works berry node
  quiet berry ds env
  grep -q "^addon .*, of $addon " "$work/log"
  berry ds --num_procs 2 ranks.cjs
done

echo '-- a bundled program, which imports the package from node_modules'
cd "$work/pnpm"
esbuild=$work/tools/node_modules/.bin/esbuild
mkdir dist
"$esbuild" train.cjs --bundle --platform=node --external:@ds/native --log-level=warning --outfile=dist/train.cjs
"$esbuild" import.mjs --bundle --platform=node --format=esm --external:@ds/native --log-level=warning \
  --outfile=dist/import.mjs
node dist/train.cjs
quiet node dist/import.mjs

echo '-- an installation that its user may only read'
cd "$work/yarn-classic"
cp "$here"/../../examples/own-model.js .
chmod -R a-w "$work/yarn-classic"
mkdir "$work/home"
reader=()
if [ "$(id -u)" = 0 ]; then # Whom no permission stops.
  chmod a+rx "$work" "$work/.."
  chown 65534 "$work/home"
  reader=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi
reads() { quiet "${reader[@]}" env HOME="$work/home" "$@"; }
if reads touch node_modules/mine 2>/dev/null >&2; then echo 'the installation can be written' >&2; exit 1; fi
reads node node_modules/.bin/ds env
reads node train.cjs
reads node node_modules/.bin/ds --num_procs 2 ranks.cjs
reads node own-model.js "$work/home/rings"
chmod -R u+w "$work/yarn-classic"
