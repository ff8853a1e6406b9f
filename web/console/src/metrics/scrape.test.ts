import { expect, test } from 'vitest';

import { quantile, rate, Scrape } from './scrape';

const EARLIER = new Scrape(
  `station_sends_total{result="accepted"} 100
station_sends_total{result="rate_limited"} 5
wait_seconds_bucket{le="0.1"} 10
wait_seconds_bucket{le="1"} 10
wait_seconds_bucket{le="+Inf"} 10`,
  1000,
);
const LATER = new Scrape(
  `station_sends_total{result="accepted"} 140
station_sends_total{result="rate_limited"} 5
wait_seconds_bucket{le="0.1"} 15
wait_seconds_bucket{le="1"} 20
wait_seconds_bucket{le="+Inf"} 20`,
  3000,
);

test('sums of what fits', () => {
  expect(LATER.sum('station_sends_total')).toBe(145);
  expect(LATER.sum('station_sends_total', { result: 'accepted' })).toBe(140);
  expect(LATER.sum('station_sends_total', { result: ['accepted', 'rate_limited'] })).toBe(145);
  expect(LATER.sum('horn_retries_total')).toBeNull();
  expect(LATER.tellsOf('station_')).toBe(true);
  expect(LATER.tellsOf('horn_')).toBe(false);
});

test('a counter grows by the second', () => {
  expect(rate(EARLIER, LATER, 'station_sends_total', { result: 'accepted' })).toBe(20);
  expect(rate(undefined, LATER, 'station_sends_total')).toBeNull();
});

test('a process that began anew has no rate yet', () => {
  expect(rate(LATER, new Scrape('station_sends_total 3', 5000), 'station_sends_total')).toBeNull();
});

test('quantiles of what came in between', () => {
  expect(quantile(0.5, EARLIER, LATER, 'wait_seconds')).toBeCloseTo(0.1);
  expect(quantile(0.75, EARLIER, LATER, 'wait_seconds')).toBeCloseTo(0.55);
  expect(quantile(0.5, LATER, LATER, 'wait_seconds')).toBeNull();
  expect(quantile(0.5, undefined, LATER, 'none')).toBeNull();
});

test('beyond the last bucket nothing is made up', () => {
  const slow = new Scrape('w_bucket{le="1"} 0\nw_bucket{le="+Inf"} 4', 1000);
  expect(quantile(0.9, undefined, slow, 'w')).toBe(1);
});
