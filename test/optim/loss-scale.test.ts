// The loss scaler against DeepSpeed's vectors and an independently written model.
import { DynamicLossScaler, StaticLossScaler } from '../../lib/optim/loss-scale.js';

test('the scale doubles after window + 1 good steps, then after every window', () => {
  const scaler = new DynamicLossScaler({ initialScalePower: 8, window: 2 });
  const seen = [0, 1, 2, 3, 4, 5].map(() => {
    scaler.update(false);
    return scaler.scale;
  });
  expect(seen).toEqual([256, 256, 512, 512, 1024, 1024]);
});

test('reaching the minimum is allowed, overflowing there is an error', () => {
  const scaler = new DynamicLossScaler({ initialScalePower: 8, hysteresis: 1 });
  for (let i = 0; i < 8; ++i) scaler.update(true);
  expect(scaler.scale).toBe(1);
  expect(() => scaler.update(true)).toThrow(
    expect.objectContaining({
      code: 'DS_NONFINITE',
      hint: expect.stringContaining('learning rate'),
    }),
  );
});

test('with hysteresis 2 the first overflow keeps the scale and each later one halves it', () => {
  const scaler = new DynamicLossScaler({ initialScalePower: 4, hysteresis: 2, window: 100 });
  const seen = [true, true, false, true, true].map((overflow) => {
    scaler.update(overflow);
    return scaler.scale;
  });
  expect(seen).toEqual([16, 8, 8, 4, 2]);
});

test.each([0, -1])('hysteresis %p never lowers the scale', (hysteresis) => {
  const scaler = new DynamicLossScaler({ initialScalePower: 4, hysteresis });
  for (let i = 0; i < 20; ++i) scaler.update(true);
  expect(scaler.scale).toBe(16);
});

/** Computes the scale from the whole history, in place of a state machine. */
function scaleAfter(history: readonly boolean[], o: ModelOptions): number | 'error' {
  let scale = 2 ** o.power;
  let spared = 0;
  for (let i = 0; i < history.length; ++i) {
    if (history[i]) {
      if (o.hysteresis > 0 && spared >= o.hysteresis - 1) {
        if (scale === o.minScale) return 'error';
        scale = Math.max(o.minScale, scale * 0.5);
      } else {
        spared += 1;
      }
      continue;
    }
    if (o.consecutive) spared = 0;
    let run = 0;
    while (i - run >= 0 && !history[i - run]) run += 1;
    if (run > 1 && (run - 1) % o.window === 0) {
      spared = 0;
      scale *= 2;
    }
  }
  return scale;
}

interface ModelOptions {
  power: number;
  window: number;
  hysteresis: number;
  consecutive: boolean;
  minScale: number;
}

/** Park-Miller, so that the sequences are the same everywhere. */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647;
  };
}

test('1,000 random overflow sequences agree with the model, through save and load', () => {
  const random = generator(20240607);
  for (let sequence = 0; sequence < 1000; ++sequence) {
    const o: ModelOptions = {
      power: Math.floor(random() * 12),
      window: 1 + Math.floor(random() * 6),
      hysteresis: Math.floor(random() * 4),
      consecutive: random() < 0.5,
      minScale: 1,
    };
    const rate = random() * 0.6;
    const make = () =>
      new DynamicLossScaler({
        initialScalePower: o.power,
        window: o.window,
        hysteresis: o.hysteresis,
        consecutiveHysteresis: o.consecutive,
        minScale: o.minScale,
      });
    let scaler = make();
    const history: boolean[] = [];
    for (let step = 0; step < 60; ++step) {
      history.push(random() < rate);
      const expected = scaleAfter(history, o);
      const update = () => scaler.update(history[step] as boolean);
      if (expected === 'error') {
        expect(update).toThrow('minimum scale');
        break;
      }
      update();
      expect(scaler.scale).toBe(expected);
      if (random() < 0.1) {
        const saved = JSON.parse(JSON.stringify(scaler.state()));
        scaler = make();
        scaler.load(saved);
      }
    }
  }
});

test('a static scale never moves, its state leaves a dynamic one at its start, and a damaged state is refused', () => {
  const fixed = new StaticLossScaler(128);
  fixed.update(true);
  expect(fixed.scale).toBe(128);
  const dynamic = new DynamicLossScaler({ initialScalePower: 5 });
  dynamic.load(fixed.state());
  expect(dynamic.state()).toEqual(new DynamicLossScaler({ initialScalePower: 5 }).state());
  expect(() => dynamic.load({ iteration: 3 })).toThrow(/"scale".*finite number/);
});

test.each([null, 7, [1]])('a state that is not an object is refused: %j', (state) => {
  const scaler = new DynamicLossScaler();
  expect(() => scaler.load(state as never)).toThrow(
    /DynamicLossScaler.load: expected a result of state\(\), got/,
  );
});
