// dump_state: prints the resolved configuration and the engine's parts.
import { formatCount } from '../../profiler/index.js';
import { mebibytes } from '../../runtime/byte-text.js';
import type { Decisions, OwnedParts } from '../engine-parts.js';

type Described = Decisions & OwnedParts;

/** Keys with secrets, which must not be logged. */
const SECRET = /(api_?key|experiment_key|token|secret|password)$/i;

/**
 * Returns a section for each part, then the configuration as JSON with masked secrets. No final
 * newline.
 */
export function describeState(parts: Described): string {
  return [
    'engine state at initialization',
    ...modelLines(parts),
    ...optimizerLines(parts),
    ...unitLines(parts),
    'configuration (resolved)',
    JSON.stringify(parts.config, mask, 2),
  ].join('\n');
}

function mask(key: string, value: unknown): unknown {
  return SECRET.test(key) && typeof value === 'string' ? '***' : value;
}

function row(name: string, value: string | number | boolean): string {
  return `  ${name.padEnd(22)}${value}`;
}

function modelLines({ module, device, batch, scaler, units, ranks }: Described): string[] {
  const trained = units.reduce((sum, { parameters }) => {
    return sum + parameters.reduce((all, { parameter }) => all + parameter.numel, 0);
  }, 0);
  const { train, microPerDevice, accumulationSteps } = batch;
  const { dataGroup, mesh } = ranks;
  const shared = dataGroup.size === 1 ? '1 rank' : `${dataGroup.size} ranks`;
  return [
    row('model', module.constructor.name),
    row('parameters', `${formatCount(module.numParameters())}, ${formatCount(trained)} trained`),
    row('device', `${device.name}, ${device.info.name}`),
    row('mesh', String(mesh.shape)),
    row('weights', units[0]?.dtype ?? 'none'),
    row('gradient sums', units[0]?.gradient.dtype ?? 'none'),
    row(
      'batch',
      `${train} = ${microPerDevice} x ${accumulationSteps} accumulation steps x ${shared}`,
    ),
    row('loss scale', `${scaler.scale}, ${scaler.dynamic ? 'dynamic' : 'static'}`),
  ];
}

function optimizerLines({ optimizer, schedules, state }: Described): string[] {
  const { device, host, disk } = state.bytes;
  const onDisk = disk > 0 ? `, ${mebibytes(disk)} on disk` : '';
  const memory = `${mebibytes(device)} on the device, ${mebibytes(host)} on the host${onDisk}`;
  return [
    row('optimizer', optimizer.name),
    ...optimizer.groups.map(({ params, ...settings }, index) =>
      row(`  group ${index}`, `${params.length} parameters, ${JSON.stringify(settings)}`),
    ),
    row('schedule', schedules.name || 'none'),
    ...state.shares.map(({ partitions, state: ownState, schedule }) =>
      row(`state of ${partitions.length} units`, `${ownState.names}, ${schedule.constructor.name}`),
    ),
    row('master and state', memory),
  ];
}

function unitLines({ stage }: Described): string[] {
  const units = [...stage.partitions, ...stage.frozen].map(({ unit }) => unit);
  return [
    row('units', units.length),
    ...units.map(({ name, parameters, layout, bytes }) => {
      const size = `${formatCount(layout.numel)} elements, weights ${mebibytes(bytes.weights)}`;
      return row(`  ${name}`, `${parameters.length} parameters, ${size}`);
    }),
  ];
}
