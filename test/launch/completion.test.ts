// `ds completion`: scripts of a small program, and the script of ds in a real bash.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Argument, Command, Option } from 'commander';
import { completionScript, type Shell } from '../../lib/launch/completion/index.js';
import { DS } from './jobs.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-completion-'));
afterAll(() => rmSync(dir, { recursive: true }));

/** Two commands, and a launcher with one option. */
function small(): [program: Command, launcher: Command] {
  const program = new Command('ds');
  program
    .command('pack')
    .description("a model's files: [all]")
    .argument('<folder>')
    .option('-c, --config <file>', 'settings')
    .option('--rank [r]', 'rank')
    .addOption(new Option('--dtype <dtype>', 'dtype').choices(['fp32', 'bf16']));
  program
    .command('shell')
    .description('print a script')
    .addArgument(new Argument('<shell>').choices(['bash', 'zsh']));
  program.command('secret', { hidden: true });
  const launcher = new Command('ds').argument('<script>').option('--num_gpus <n>', 'GPUs');
  return [program, launcher];
}

/** The values that the script of bash offers after an option. */
const casesOf = (script: string): string[] =>
  script.split('\n').filter((line) => line.includes('; return ;;'));

test('bash completes values; the word after an optional value may be anything', () => {
  expect(casesOf(scriptOf('bash'))).toEqual([
    "    ' --num_gpus') :; return ;;",
    "    'pack -c' | 'pack --config') _ds_file; return ;;",
    "    'pack --dtype') _ds_words 'fp32 bf16'; return ;;",
  ]);
});

const scriptOf = (shell: Shell): string => completionScript(shell, ...small());

test('the script of zsh describes commands and options', () => {
  const help = "'-h[display help for command]' '--help[display help for command]'";
  const pack = [
    "'-c=[settings]:value:_files' '--config=[settings]:value:_files' '--rank=[rank]::value: '",
    `'--dtype=[dtype]:value:(fp32 bf16)' ${help} '*:argument:_files -/'`,
  ].join(' ');
  const start = 'shift words; ((CURRENT--)); _arguments -S';
  expect(scriptOf('zsh').split('\n').slice(3, -3)).toEqual([
    '  local -a commands=(',
    "    'pack:a model'\\''s files: [all]'",
    "    'shell:print a script'",
    '  )',
    '  if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then',
    '    _describe -t commands command commands',
    '    _files',
    '    return',
    '  fi',
    '  case $words[2] in',
    `    pack) ${start} ${pack} ;;`,
    `    shell) ${start} ${help} '*:argument:(bash zsh)' ;;`,
    '    help) _describe -t commands command commands ;;',
    `    *) _arguments -S '--num_gpus=[GPUs]:value: ' ${help} '*:argument:_files' ;;`,
    '  esac',
  ]);
});

test('the script of fish has a line for each word', () => {
  const [outside, pack, shell] = ['not __fish_seen_subcommand_from pack shell']
    .concat(['pack', 'shell'].map((name) => `__fish_seen_subcommand_from ${name}`))
    .map((test) => `complete -c ds -n '${test}'`);
  const help = "-s h -l help -d 'display help for command'";
  expect(scriptOf('fish').split('\n').slice(1)).toEqual([
    `${outside} -a pack -d 'a model\\'s files: [all]'`,
    `${outside} -a shell -d 'print a script'`,
    `${outside} -l num_gpus -d 'GPUs' -x`,
    `${outside} ${help}`,
    `${pack} -f -a '(__fish_complete_directories)'`,
    `${pack} -s c -l config -d 'settings' -r -F`,
    `${pack} -l rank -d 'rank'`,
    `${pack} -l dtype -d 'dtype' -x -a 'fp32 bf16'`,
    `${pack} ${help}`,
    `${shell} -f -a 'bash zsh'`,
    `${shell} ${help}`,
  ]);
});

test.each<Shell>(['bash', 'zsh', 'fish'])(
  'the script of %s parses, if the shell is there',
  (shell) => {
    for (const script of [
      scriptOf(shell),
      spawnSync(process.execPath, [...DS, 'completion', shell], { encoding: 'utf8' }).stdout,
    ]) {
      expect(script.length).toBeGreaterThan(100);
      expect(script).not.toMatch(/secret|undefined/);
      const file = join(dir, `script.${shell}`);
      writeFileSync(file, script);
      const { error, status, stderr } = spawnSync(shell, ['-n', file], { encoding: 'utf8' });
      // A machine without the shell compares only the texts above.
      if ((error as NodeJS.ErrnoException | undefined)?.code === 'ENOENT') continue;
      expect([status, stderr]).toEqual([0, '']);
    }
  },
);

/** What bash offers for the last of `words`. */
function completionsOf(script: string, words: readonly string[]): string[] {
  const list = words.map((word) => `'${word}'`).join(' ');
  const lines = [
    `COMP_WORDS=(${list}); COMP_CWORD=${words.length - 1}; _ds`,
    `printf '%s\\n' "\${COMPREPLY[@]}"`,
  ];
  const { status, stdout, stderr } = spawnSync('bash', ['--norc'], {
    input: [script, ...lines].join('\n'),
    encoding: 'utf8',
    cwd: dir,
  });
  expect([status, stderr]).toEqual([0, '']);
  return stdout.split('\n').filter(Boolean).sort();
}

describe('in bash', () => {
  let script = '';
  beforeAll(() => {
    mkdirSync(join(dir, 'model a'));
    writeFileSync(join(dir, 'my rows.jsonl'), '');
    script = spawnSync(process.execPath, [...DS, 'completion', 'bash'], {
      encoding: 'utf8',
    }).stdout;
  });

  test.each<[line: string[], words: string[]]>([
    [['va'], ['validate']],
    [['--num_p'], ['--num_procs']],
    [['--num_procs', '2', 'va'], ['validate']],
    [['--num_procs', '=', '2', 'va'], ['validate']],
    [['my'], ['my rows.jsonl']],
    [['plan', '--prec'], ['--precision']],
    [
      ['plan', '--precision', ''],
      ['bf16', 'fp16', 'fp32'],
    ],
    [
      ['plan', '--precision', '=', 'f'],
      ['fp16', 'fp32'],
    ],
    [
      ['plan', '--precision', '='],
      ['bf16', 'fp16', 'fp32'],
    ],
    [
      ['plan', '--config', 'm'],
      ['model a', 'my rows.jsonl'],
    ],
    [['plan', '--model', 'm'], ['model a']],
    [
      ['plan', '--gpu', 'a100'],
      ['a100-40g', 'a100-80g'],
    ],
    [['plan', '--batch', ''], []],
    [['eval', 'm'], ['model a']],
    [['eval', '--data', 'my'], ['my rows.jsonl']],
    [['validate', 'my'], ['my rows.jsonl']],
    [
      ['train', '--eval_st'],
      ['--eval_steps', '--eval_strategy'],
    ],
    [
      ['train', '--lora_r'],
      ['--lora_r', '--lora_rank'],
    ],
    [['train', '--data', 'my'], ['my rows.jsonl']],
    [
      ['completion', ''],
      ['bash', 'fish', 'zsh'],
    ],
    [['help', 'pl'], ['plan']],
    [
      ['train.js', 'm'],
      ['model a', 'my rows.jsonl'],
    ],
    [['env', ''], []],
  ])('ds %j offers %j', (line, words) => {
    expect(completionsOf(script, ['ds', ...line])).toEqual(words);
  });
});

test('ds completion refuses other shells', () => {
  const { status, stderr } = spawnSync(process.execPath, [...DS, 'completion', 'tcsh'], {
    encoding: 'utf8',
  });
  expect([status, stderr]).toEqual([
    2,
    expect.stringMatching(/Allowed choices are bash, zsh, fish/),
  ]);
});
