import { expect, test } from 'vitest';

import { parseMetrics } from './text';

test('samples with and without labels', () => {
  const text = `# HELP boat_connections how many
# TYPE boat_connections gauge
boat_connections{transport="websocket"} 12
boat_connections{transport="tcp"} 3

# TYPE boat_sends_total counter
boat_sends_total 1.5e3
`;
  expect(parseMetrics(text)).toEqual([
    { name: 'boat_connections', labels: { transport: 'websocket' }, value: 12 },
    { name: 'boat_connections', labels: { transport: 'tcp' }, value: 3 },
    { name: 'boat_sends_total', labels: {}, value: 1500 },
  ]);
});

test('infinities, no numbers, and a time of their own', () => {
  const text = 'a_bucket{le="+Inf"} 3 1790000000000\nb NaN\nc -Inf';
  expect(parseMetrics(text)).toEqual([
    { name: 'a_bucket', labels: { le: '+Inf' }, value: 3 },
    { name: 'b', labels: {}, value: NaN },
    { name: 'c', labels: {}, value: -Infinity },
  ]);
});

test('labels may hold anything', () => {
  const text = String.raw`x{a="say \"no\", {now}",b="one\ntwo \\ three"} 1`;
  expect(parseMetrics(text)[0]?.labels).toEqual({ a: 'say "no", {now}', b: 'one\ntwo \\ three' });
});

test('what is no sample is passed over', () => {
  expect(parseMetrics('<html>\nx\ny{a="1"} many\n\n')).toEqual([]);
});
