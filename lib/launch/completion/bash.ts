// Formats the completion script for bash.
import type { CommandWords, OptionWords, Values } from './words.js';

/** Returns the script. `launcher` has the options of `ds SCRIPT`. */
export function bashScript(launcher: CommandWords, commands: readonly CommandWords[]): string {
  const withValue = launcher.options.filter(({ values, isOptional }) => values && !isOptional);
  const all = [{ ...launcher, name: '' }, ...commands];
  const names = commands.map(({ name }) => name).join(' ');
  return `# Completion of ds for bash. In ~/.bashrc: source <(ds completion bash)
_ds_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
_ds_file() { mapfile -t COMPREPLY < <(compgen -f -- "$cur"); compopt -o filenames 2>/dev/null; }
_ds_folder() { mapfile -t COMPREPLY < <(compgen -d -- "$cur"); compopt -o filenames 2>/dev/null; }
_ds() {
  local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD - 1]} command='' i
  COMPREPLY=()
  # Bash splits --option=value at the equals sign.
  if [[ $cur == = ]]; then cur=''
  elif [[ $prev == = ]]; then prev=\${COMP_WORDS[COMP_CWORD - 2]}; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case \${COMP_WORDS[i]} in
      ${listFlags(withValue).join(' | ')})
        if [[ \${COMP_WORDS[i + 1]} == = ]]; then ((i++)); fi
        ((i++)) ;;
      -* | =) ;;
      *) command=\${COMP_WORDS[i]}; break ;;
    esac
  done
  case "$command $prev" in
${all.flatMap(formatValueCases).join('\n')}
  esac
  case $command in
${all.map((words) => formatCommandCase(words, names)).join('\n')}
    help) _ds_words '${names}' ;;
    *) _ds_file ;;
  esac
}
complete -F _ds ds`;
}

const listFlags = (options: readonly OptionWords[]): string[] =>
  options.flatMap(({ flags }) => flags);

/** Returns the call that completes a value, or ":" if the script cannot complete it. */
function formatCall(values: Values): string {
  if (values === 'other') return ':';
  return typeof values === 'string' ? `_ds_${values}` : `_ds_words '${values.join(' ')}'`;
}

/** Formats one case for all options of a command with the same values. */
function formatValueCases({ name, options }: CommandWords): string[] {
  const cases = new Map<string, string[]>();
  for (const { flags, values, isOptional } of options) {
    if (values === null || (isOptional && values === 'other')) continue;
    const call = formatCall(values);
    cases.set(call, [...(cases.get(call) ?? []), ...flags.map((flag) => `'${name} ${flag}'`)]);
  }
  return [...cases].map(([call, patterns]) => `    ${patterns.join(' | ')}) ${call}; return ;;`);
}

function formatCommandCase({ name, options, values }: CommandWords, names: string): string {
  const flags = `if [[ $cur == -* ]]; then _ds_words '${listFlags(options).join(' ')}'`;
  if (name === '') {
    const completeBoth = `_ds_file; COMPREPLY+=($(compgen -W '${names}' -- "$cur"))`;
    return `    '') ${flags}; else ${completeBoth}; fi ;;`;
  }
  return `    ${name}) ${flags}; ${values ? `else ${formatCall(values)}; ` : ''}fi ;;`;
}
