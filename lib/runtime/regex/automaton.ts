// A deterministic automaton, built lazily from a program as texts reach its states.
import { required } from '../required.js';
import { type Alphabet, EDGE } from './alphabet.js';
import type { Instruction, Program } from './program.js';

/** How an automaton reads texts. */
interface Reading {
  /** Whether the text is read from its end to its start. */
  readonly isReversed: boolean;
  /**
   * Whether the automaton starts at every position and continues after matches, so that it finds
   * all positions. Otherwise it starts once, and a match ends alternatives of lower priority, as in
   * Perl.
   */
  readonly marksAll: boolean;
}

/** Counts work, and throws when it exceeds a bound. */
export interface Meter {
  spend(steps: number): void;
}

interface State {
  /** Instructions by priority, before the empty transitions. */
  readonly kernel: readonly number[];
  /** The letter that was read last. */
  readonly passed: number;
  /**
   * For each input: 2 * next state, + 1 if the program matches before it. A state of -1 is dead.
   */
  next: (number | undefined)[];
}

/** Maximum number of states in memory. Beyond it, all are dropped and built again when needed. */
const MAX_STATES = 2000;
const DEAD = -1;

export class Automaton {
  private states: State[] = [];
  private numbers = new Map<string, number>();
  /** The start state after each letter. */
  private starts: (number | undefined)[] = [];
  private readonly instructions: readonly Instruction[];
  private readonly dependsOnPassed: boolean;
  private visited: Int32Array;
  private round = 0;

  /** `looks` is the number of lookarounds. Each adds a bit to the input. */
  constructor(
    private readonly program: Program,
    private readonly alphabet: Alphabet,
    private readonly reading: Reading,
    private readonly looks: number,
  ) {
    this.instructions = program.instructions;
    this.visited = new Int32Array(this.instructions.length);
    this.dependsOnPassed = this.instructions.some(
      (instruction) => instruction.op === 'side' && instruction.isAhead === reading.isReversed,
    );
  }

  /** Returns the start state after the letter `passed`. */
  start(passed: number): number {
    const letter = this.dependsOnPassed ? passed : EDGE;
    this.starts[letter] ??= this.numberOf([this.program.start], passed);
    return this.starts[letter];
  }

  /**
   * Reads `coming`; EDGE ends the text. `truths` has a bit for each lookaround that holds here.
   * Returns 2 * next state + 1 if the program matches before the letter, else + 0; the state is -1
   * if no match can follow.
   */
  step(state: number, coming: number, truths: number, meter: Meter): number {
    const { next } = required(this.states[state]);
    const input = (coming << this.looks) | truths;
    return next[input] ?? this.compute(state, coming, truths, input, meter);
  }

  private compute(
    number: number,
    coming: number,
    truths: number,
    input: number,
    meter: Meter,
  ): number {
    if (this.states.length > MAX_STATES) {
      // The caller's state must stay valid: it becomes the first of the new states.
      const { kernel, passed } = required(this.states[number]);
      this.states = [];
      this.starts = [];
      this.numbers.clear();
      return this.compute(this.numberOf(kernel, passed), coming, truths, input, meter);
    }
    const state = required(this.states[number]);
    const { marksAll } = this.reading;
    const kernel = marksAll ? [...state.kernel, this.program.start] : state.kernel;
    const { sets, isMatch, work } = this.close(kernel, state.passed, coming, truths);
    meter.spend(work);
    const targets = coming === EDGE ? [] : this.targets(sets, coming);
    const isDead = targets.length === 0 && (!marksAll || coming === EDGE);
    const target = isDead ? DEAD : this.numberOf(targets, coming);
    const result = 2 * target + (isMatch ? 1 : 0);
    state.next[input] = result;
    return result;
  }

  /** Follows empty transitions by priority. */
  private close(kernel: readonly number[], passed: number, coming: number, truths: number) {
    const { instructions, visited, alphabet } = this;
    const { isReversed, marksAll } = this.reading;
    const round = ++this.round;
    const sets: number[] = [];
    let isMatch = false;
    let work = 0;
    const stack: number[] = [];
    for (const root of kernel) {
      stack.push(root);
      while (stack.length > 0) {
        const at = required(stack.pop());
        if (visited[at] === round) continue;
        visited[at] = round;
        work++;
        const item = required(instructions[at]);
        switch (item.op) {
          case 'set':
            sets.push(at);
            break;
          case 'split':
            stack.push(item.second, item.first);
            break;
          case 'side': {
            const letter = item.isAhead === isReversed ? passed : coming;
            if (alphabet.has(letter, item.set) !== item.isNegative) stack.push(item.next);
            break;
          }
          case 'look':
            if (((truths >> item.look) & 1) === (item.isNegative ? 0 : 1)) stack.push(item.next);
            break;
          case 'match':
            isMatch = true;
            if (!marksAll) return { sets, isMatch, work };
        }
      }
    }
    return { sets, isMatch, work };
  }

  /** Returns the instructions that follow `sets` after a letter. */
  private targets(sets: readonly number[], letter: number): number[] {
    const { instructions, visited } = this;
    const round = ++this.round;
    const targets: number[] = [];
    for (const at of sets) {
      const { set, next } = instructions[at] as { set: number; next: number };
      if (!this.alphabet.has(letter, set) || visited[next] === round) continue;
      visited[next] = round;
      targets.push(next);
    }
    if (this.reading.marksAll) targets.sort((a, b) => a - b);
    return targets;
  }

  private numberOf(kernel: readonly number[], letter: number): number {
    const passed = this.dependsOnPassed ? letter : EDGE;
    const key = `${passed}:${kernel.join(',')}`;
    let number = this.numbers.get(key);
    if (number === undefined) {
      number = this.states.push({ kernel, passed, next: [] }) - 1;
      this.numbers.set(key, number);
    }
    return number;
  }
}
