# shellcheck shell=bash
# The exercises: ./run exercise and ./run course. Sourced by ../../run, which stands in the repository.
#
# An exercise is a folder NN_chapter/exercises/<id>_<name>. A step from one small program to the next has
# task.md, hints.md and wrong/ there; its solution is the chapter's minimal.cpp. Other exercises have a
# starter/ and a solution/. The learner's answer is in mine/, which git ignores, beside a file of notes:
# lines "started <time>", "hint", "warned" and "done <time>", times in seconds.

# exercise_folder <id or name>: prints the exercise's folder.
exercise_folder() {
  local wanted=${1:-} folder all=([0-9]*_*/exercises/*/)
  for folder in "${all[@]%/}"; do
    case ${folder##*/} in
      "$wanted" | "${wanted:-?}_"*)
        echo "$folder"
        return
        ;;
    esac
  done
  die "no exercise '$wanted'; there are: $(basename -a "${all[@]}" | tr '\n' ' ')"
}

is_step() { [[ -f $1/task.md ]]; }

# The names of the exercise's CMake target and of the learner's file.
exercise_id() { if is_step "$1"; then basename "$1" | cut -d_ -f1; else basename "$1"; fi; }
answer_file() { if is_step "$1"; then echo "$1/mine/minimal.cpp"; else echo "$1/mine/$(basename "$1").cpp"; fi; }

# Prints the program that a step begins with: the small program of the chapter before, or that of the chapter
# itself under starter.patch.
program_before() (
  local folder=$1 chapter=${1%%/*} before scratch
  if [[ -f $folder/starter.patch ]]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    cp "$chapter/minimal.cpp" "$scratch"
    (cd "$scratch" && GIT_DIR=/ git apply "$ROOT/$folder/starter.patch")
    cat "$scratch/minimal.cpp"
  else
    printf -v before '%02d' $((10#${chapter:0:2} - 1))
    cat "$(chapter "$before")/minimal.cpp"
  fi
)

# Prints what the learner begins with: for a step the task, as a comment, and the program.
starter_of() {
  if is_step "$1"; then
    sed -e 's|^# ||; s|^|// |; s| *$||' "$1/task.md"
    echo
    program_before "$1"
  else
    cat "$1/starter/$(basename "$1").cpp"
  fi
}

# note <folder> <word>...: adds a line to the exercise's notes.
note() { echo "${*:2}" >>"$1/mine/notes"; }
# count_notes <folder> <word>: how many lines begin with the word.
count_notes() { cat "$1/mine/notes" 2>/dev/null | grep -c "^$2\b" || true; }
# first_note <folder> <word>: the time of the first such line.
first_note() { sed -n "s/^$2 //p" "$1/mine/notes" 2>/dev/null | head -n 1; }

begin_exercise() {
  local folder=$1 file
  file=$(answer_file "$folder")
  [[ ! -f $file ]] || return 0
  mkdir -p "$folder/mine"
  starter_of "$folder" >"$file.new"
  mv "$file.new" "$file"
  note "$folder" started "$(date +%s)"
  say "Your copy to work in: $file"
}

hints_in() { grep -c '^## ' "$1/hints.md"; }

next_hint() {
  local folder=$1 used
  [[ -f $folder/hints.md ]] || die "the hints of this exercise are in $folder/README.md"
  begin_exercise "$folder"
  used=$(count_notes "$folder" hint)
  if ((used == $(hints_in "$folder"))); then
    die "there are no more hints; $folder/hints.md has all $used. --solution shows our program."
  fi
  note "$folder" hint
  awk -v wanted=$((used + 1)) '/^## / { ++section } section == wanted' "$folder/hints.md" |
    sed -e "1s/^## \([0-9]*\)/Hint \1 of $(hints_in "$folder")/" -e '${/^$/d}'
}

reset_exercise() {
  local folder=$1 file
  file=$(answer_file "$folder")
  if [[ -f $file ]]; then
    mv "$file" "${file%.cpp}.old.cpp"
    say "Your answer is now in ${file%.cpp}.old.cpp"
  fi
  rm -f "$folder/mine/notes"
  begin_exercise "$folder"
}

# The first call warns.
show_solution() (
  local folder=$1 chapter=${1%%/*} left="" scratch
  begin_exercise "$folder"
  if (($(count_notes "$folder" warned) == 0)); then
    [[ ! -f $folder/hints.md ]] ||
      left=" You have used $(count_notes "$folder" hint) of $(hints_in "$folder") hints."
    note "$folder" warned
    say "This shows our answer.$left Call it once more to see it."
  elif is_step "$folder"; then
    scratch=$(mktemp)
    trap 'rm -f "$scratch"' EXIT
    program_before "$folder" >"$scratch"
    say "Our answer is $chapter/minimal.cpp. What it changes:"
    show_small_diff "$scratch" "$chapter/minimal.cpp" never
  else
    cat "$folder/solution/$(basename "$folder").cpp"
  fi
)

# Builds and grades the learner's answer.
grade_exercise() {
  local folder=$1 id said before=""
  id=$(exercise_id "$folder")
  [[ -f $(answer_file "$folder") ]] || before=yes
  begin_exercise "$folder"
  [[ -z $before ]] || ! is_step "$folder" || cat "$folder/task.md"  # also at the top of the copy
  bootstrap
  configure release release
  build release "exercise_$id"
  if ! is_step "$folder"; then
    exec "$BIN/exercise_$id" --gtest_brief=1 "${@:2}"  # only what fails
  fi
  said=$(OMP_NUM_THREADS=1 "$BIN/exercise_$id") || true
  [[ -z $before ]] || say "What the grader says before your first change:"
  [[ -z $said ]] || echo "$said"
  # A program can end in other ways than by the grader.
  if [[ $said != *"$id is right"* ]]; then
    [[ $said == *"$id, "*rank* ]] || say "The program was not graded: main() must call launch_ranks()."
    return 1
  fi
  [[ -n $(first_note "$folder" done) ]] || note "$folder" "done" "$(date +%s)"
  say "Our answer is ${folder%%/*}/minimal.cpp. $(next_step)"
}

# minutes_of <folder>: from the beginning to the first right answer; nothing before that.
minutes_of() {
  local started ended
  started=$(first_note "$1" started)
  ended=$(first_note "$1" "done")
  [[ -z $started || -z $ended ]] || echo $(((ended - started + 59) / 60))
}

next_step() {
  local folder
  for folder in [0-9]*_*/exercises/*/; do
    folder=${folder%/}
    is_step "$folder" || continue
    [[ -n $(first_note "$folder" "done") ]] && continue
    echo "Next: ./run exercise $(exercise_id "$folder")"
    return
  done
  echo "You have written ZeRO: all six steps are done."
}

run_exercise() {
  local folder
  folder=$(exercise_folder "${1:-}")
  case ${2:-} in
    --hint) next_hint "$folder" ;;
    --reset) reset_exercise "$folder" ;;
    --solution) show_solution "$folder" ;;
    *) grade_exercise "$folder" "${@:2}" ;;
  esac
}

run_course() {
  local folder title state others=()
  printf '%-5s %-44s %-7s %-8s %-8s %s\n' step task state hints minutes "takes about"
  for folder in [0-9]*_*/exercises/*/; do
    folder=${folder%/}
    if ! is_step "$folder"; then
      others+=("${folder##*/}")
      continue
    fi
    title=$(sed -n '1s/^# [^:]*: //p' "$folder/task.md")
    state="-"
    [[ -z $(first_note "$folder" started) ]] || state=begun
    [[ -z $(first_note "$folder" "done") ]] || state="done"
    printf '%-5s %-44s %-7s %-8s %-8s %s\n' "$(exercise_id "$folder")" "$title" "$state" \
      "$(count_notes "$folder" hint) of $(hints_in "$folder")" "$(minutes_of "$folder")" \
      "$(sed -n 's/^About \([0-9]* minutes\), \([a-z]*\).*/\1, \2/p' "$folder/task.md")"
  done
  printf '\n%s\n' "$(next_step)"
  ((${#others[@]} == 0)) || echo "Besides these: ./run exercise ${others[*]}"
}
