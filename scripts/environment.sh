# Sourced by scripts/serve, scripts/test and .ci/run: makes the virtual environment when it is missing or stale.
#
#   PYTHON           interpreter to use; by default that of the environment that exists, else the first on PATH that runs
#   JAXINFER_EXTRAS  extras of pyproject.toml to install as well, such as "cuda13 uvloop"

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
constraints="${constraints:-$repository/constraints.txt}"

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# The interpreter behind a command, be that a shim or an environment's; fails where it does not run or is too old.
base_python() {
  "$1" -c 'import sys; print(sys._base_executable) if sys.version_info >= (3, 11) else sys.exit(1)' 2>/dev/null
}

has_uv() { uv --version >/dev/null 2>&1; }

# find_python VENV. A name on PATH need not run (pyenv leaves such shims), and the next of that name may.
find_python() {
  local venv="$1" name path
  if [[ -n "${PYTHON:-}" ]]; then
    base_python "$PYTHON" && return
    say "PYTHON=$PYTHON does not run, or is older than Python 3.11"
    return 1
  fi
  base_python "$venv/bin/python" && return
  for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
    while read -r path; do
      base_python "$path" && return
    done < <(type -ap "$name")
  done
  say "no Python 3.11 or newer found on PATH: install one, or name one, as in PYTHON=/path/to/python3.12 $0"
  return 1
}

# What an environment depends on, in one line. Empty where its Python does not run.
fingerprint() {
  "$1" -IS - "$repository/pyproject.toml" "$constraints" 2>/dev/null <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(b"".join(pathlib.Path(name).read_bytes() for name in sys.argv[1:]))
print("%d.%d.%d" % sys.version_info[:3], digest.hexdigest())
PY
}

# is_current VENV EXTRA... The stamp's lines: the fingerprint, the extras installed, the repository's folder.
is_current() {
  local venv="$1" stamp_print stamp_extras stamp_folder extra
  shift
  [[ -f "$venv/stamp" ]] || return 1
  { read -r stamp_print && read -r stamp_extras && read -r stamp_folder; } <"$venv/stamp" || return 1
  [[ "$stamp_folder" == "$repository" && "$stamp_print" == "$(fingerprint "$venv/bin/python")" ]] || return 1
  [[ -z "${PYTHON:-}" || "$stamp_print" == "$(fingerprint "$PYTHON")" ]] || return 1
  for extra in "$@"; do
    [[ " $stamp_extras " == *" $extra "* ]] || return 1
  done
}

# A lock that needs no tool beside Python: it belongs to descriptor 9 and ends with it.
lock() {
  "$1" -c 'import fcntl
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("waiting for another run that makes the environment", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)' >&2
}

create() {
  local venv="$1" python="$2"
  rm -rf "$venv"
  mkdir -p "$venv"
  echo building >"$venv/stamp"
  if has_uv; then
    uv venv --quiet --allow-existing --python "$python" "$venv"
  elif ! "$python" -m venv "$venv"; then
    say "$python cannot make virtual environments: install its venv module (python3-venv on Debian), or uv"
    return 1
  fi
}

# tell WHAT: with the minutes and seconds since `start`; `told` is when it did so last.
tell() {
  told=$SECONDS
  say "$(printf '%d:%02d' $(((told - start) / 60)) $(((told - start) % 60))) $*"
}

# wheel_named LINE: name, version and size of the file that pip downloads.
wheel_named() {
  local file="${1#*Downloading }" rest
  rest="${file#*-}"
  echo "${file%%-*} ${rest%%-*} (${file##*(}"
}

installed_since_stamp() {
  find "$1"/lib/*/site-packages -maxdepth 1 -name '*.dist-info' -newer "$1/stamp" | wc -l
}

# show_progress VENV. Of pip's output, which has three lines a package and none while it installs: each download of a
# megabyte or more, and, every ten seconds in which there is none, how far it is.
show_progress() {
  local venv="$1" line found=0 total=0 doing="looking for packages" start=$SECONDS told=$SECONDS
  while IFS= read -r -t 10 line || (($? > 128)); do
    case "$line" in
      Collecting* | Processing*) doing="$((++found)) packages found" ;;
      *Downloading*.metadata*) ;;
      *"Downloading "*" MB)") doing="downloading $(wheel_named "$line")" && tell "$doing" ;;
      "Installing collected packages: "*)
        total="$(tr -cd , <<<"$line" | wc -c)" && touch "$venv/stamp" && tell "installing $((++total)) packages"
        ;;
      "Successfully installed "*) tell "installed $total packages" ;;
      *"WARNING: Retrying "*) tell "$line" ;;
    esac
    ((SECONDS - told < 10)) && continue
    ((total)) && doing="$(installed_since_stamp "$venv") of $total packages installed"
    tell "$doing"
  done
  cat >/dev/null # bash 3.2 takes ten quiet seconds for the end
}

# Lines of pip that are no part of an error, as a regular expression.
ordinary='^(Looking|Obtaining|Collecting|Processing|Requirement|Using|Installing|Building|Downloading|WARNING: Location'
ordinary+='|  (Using|Downloading|Installing|Getting|Preparing|Checking|Building))'

# install_with_pip VENV ARGUMENT...
install_with_pip() {
  local venv="$1" python="$1/bin/python" log="$1/install.log"
  shift
  "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null
  "$python" -m pip install --progress-bar off --disable-pip-version-check "$@" 2>&1 | tee "$log" | show_progress "$venv"
  [[ "${PIPESTATUS[0]}" == 0 ]] && return
  grep -vE "$ordinary" "$log" >&2
  say "pip failed; all that it said is in $log"
  return 1
}

# install_with_uv VENV ARGUMENT...: on a terminal uv draws its own progress.
install_with_uv() {
  # As pip does: where Python may not write bytecode (PYTHONDONTWRITEBYTECODE), every start would compile all of jax.
  set -- uv pip install --compile-bytecode --python "$1/bin/python" "${@:2}"
  if [[ -t 2 ]]; then
    "$@"
    return
  fi
  "$@" 2>&1 | grep -v '^ [-+~] ' >&2 # at the end it lists all packages
  return "${PIPESTATUS[0]}"
}

install() {
  local venv="$1" extras="$2" tool=pip
  has_uv && tool=uv
  # Native kernels are built by build_native, with the headers that are installed, and not by the package's own build.
  JAXINFER_BUILD_NATIVE=0 "install_with_$tool" "$venv" --constraint "$constraints" --editable "$repository${extras:+[${extras// /,}]}"
}

# build_native PYTHON ARGUMENT...: builds the native kernels for CPUs, if they are not of these sources. One line says why
# there are none, which is no failure.
build_native() {
  local script="$repository/kernels/jaxinfer_kernels/cpu/build.py" said
  [[ -f "$script" ]] || return 0
  { said="$(nice "$1" "$script" "${@:2}" 2>&1 >&3)" || say "${said%%$'\n'*}"; } 3>&2
}

# An environment of the same Python is changed in place, so that a process that runs from it goes on. It is made anew
# where the Python differs, where the folder was moved, and where it was being made (its stamp says so) and is not whole.
can_change_in_place() {
  local venv="$1" python="$2" version stamp_version=''
  version="$(fingerprint "$python")" && version="${version%% *}"
  [[ "$(fingerprint "$venv/bin/python")" == "$version "* ]] || return 1
  [[ -f "$venv/stamp" ]] || return 0
  read -r stamp_version _ <"$venv/stamp"
  [[ "$stamp_version" == "$version" && "$(sed -n 3p "$venv/stamp")" == "$repository" ]]
}

# make_environment VENV PYTHON EXTRA...
make_environment() {
  local venv="$1" python="$2" extras ahead
  shift 2
  extras="$*"
  if can_change_in_place "$venv" "$python"; then
    extras="$(printf '%s\n' $extras $(sed -n 2p "$venv/stamp" 2>/dev/null) | sort -u | xargs)"
    say "bringing ${venv##*/} up to date (${extras:-no extras})"
    echo building >"$venv/stamp"
  else
    say "making ${venv##*/} with $("$python" --version)${extras:+ and $extras}: 0.8 GB or more, in a minute or a few"
    create "$venv" "$python" || return
  fi
  trap 'say "set-up was interrupted; the next command goes on with it"; trap - INT; kill -INT $$' INT
  # Most of the kernels are compiled while packages are downloaded; what is wrong is said when the rest is.
  build_native "$python" --ahead 2>/dev/null 9>&- &
  ahead=$!
  install "$venv" "$extras" || { trap - INT; return 1; }
  ! kill -0 "$ahead" 2>/dev/null || say "compiling native kernels for the CPU: up to half a minute, once"
  wait "$ahead"
  printf '%s\n' "$(fingerprint "$venv/bin/python")" "$extras" "$repository" >"$venv/stamp.new"
  mv "$venv/stamp.new" "$venv/stamp"
  trap - INT
}

# ensure_environment VENV EXTRA...: returns non-zero, with the reason on stderr, where it cannot be made.
ensure_environment() {
  local venv="$1" python
  shift
  set -- "$@" ${JAXINFER_EXTRAS:-}
  is_current "$venv" "$@" && build_native "$venv/bin/python" && return
  python="$(find_python "$venv")" || return
  exec 9>"$venv.lock"
  lock "$python" || return
  is_current "$venv" "$@" || make_environment "$venv" "$python" "$@" || return
  build_native "$venv/bin/python"
  exec 9>&-
}
