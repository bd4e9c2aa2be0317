// The completion script for zsh.
import type { CommandWords, OptionWords, Values } from './words.js';

/** `launcher` is `ds` itself, with options and a script. */
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
${commands.map(commandCase).join('\n')}
    help) _describe -t commands command commands ;;
    *) _arguments -S ${specs(launcher)} '*:argument:_files' ;;
  esac
}
# Zsh runs the file as a function from fpath; a sourced file registers the function.
if [[ $funcstack[1] == _ds ]]; then _ds "$@"; else compdef _ds ds; fi`;
}

function commandCase(command: CommandWords): string {
  const rest = command.values ? ` '*:argument:${actionOf(command.values)}'` : '';
  return `    ${command.name}) shift words; ((CURRENT--)); _arguments -S ${specs(command)}${rest} ;;`;
}

const specs = ({ options }: CommandWords): string => options.flatMap(specsOf).join(' ');

/** The optspecs of \`_arguments\`, one for each spelling. */
function specsOf({ flags, text, values, isOptional }: OptionWords): string[] {
  const value = values ? `:${isOptional ? ':' : ''}value:${actionOf(values)}` : '';
  const shown = text.replace(/[\\[\]:]/g, '\\$&');
  return flags.map((flag) => quoteText(`${flag}${values ? '=' : ''}[${shown}]${value}`));
}

function actionOf(values: Values): string {
  if (values === 'other') return ' ';
  if (values === 'file') return '_files';
  return values === 'folder' ? '_files -/' : `(${values.join(' ')})`;
}

const quoteText = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;
