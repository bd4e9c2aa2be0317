// Formats the completion script for zsh.
import type { CommandWords, OptionWords, Values } from './words.js';

/** Returns the script. `launcher` has the options of `ds SCRIPT`. */
export function zshScript(launcher: CommandWords, commands: readonly CommandWords[]): string {
  const names = commands.map(({ name, text }) => `    ${quoteText(`${name}:${text}`)}`);
  return `#compdef ds
# Completion of ds for zsh. In ~/.zshrc, after compinit: source <(ds completion zsh)
_ds() {
  local -a commands=(
${names.join('\n')}
  )
  if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then
    _describe -t commands command commands
    _files
    return
  fi
  case $words[2] in
${commands.map(formatCommandCase).join('\n')}
    help) _describe -t commands command commands ;;
    *) _arguments -S ${formatSpecs(launcher)} '*:argument:_files' ;;
  esac
}
# Zsh runs the file as a function from fpath; a sourced file registers the function.
if [[ $funcstack[1] == _ds ]]; then _ds "$@"; else compdef _ds ds; fi`;
}

function formatCommandCase(command: CommandWords): string {
  const argumentSpec = command.values ? ` '*:argument:${formatAction(command.values)}'` : '';
  return `    ${command.name}) shift words; ((CURRENT--)); _arguments -S ${formatSpecs(command)}${argumentSpec} ;;`;
}

const formatSpecs = ({ options }: CommandWords): string =>
  options.flatMap(formatOptionSpecs).join(' ');

/** Returns the optspecs of zsh's `_arguments`, one for each spelling of an option. */
function formatOptionSpecs({ flags, text, values, isOptional }: OptionWords): string[] {
  const value = values ? `:${isOptional ? ':' : ''}value:${formatAction(values)}` : '';
  const shown = text.replace(/[\\[\]:]/g, '\\$&');
  return flags.map((flag) => quoteText(`${flag}${values ? '=' : ''}[${shown}]${value}`));
}

function formatAction(values: Values): string {
  if (values === 'other') return ' ';
  if (values === 'file') return '_files';
  return values === 'folder' ? '_files -/' : `(${values.join(' ')})`;
}

const quoteText = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;
