import { expect, test } from 'vitest';

import { MEASURES } from './measures';
import { Scrape } from './scrape';

const EARLIER = new Scrape('station_sends_total{result="accepted"} 10\nstation_sends_total{result="busy"} 1', 1000);
const LATER = new Scrape('station_sends_total{result="accepted"} 30\nstation_sends_total{result="busy"} 5', 3000);

test('what is accepted and what is refused, in whatever way', () => {
  const moments = { now: LATER, before: EARLIER };
  expect(MEASURES.accepted(moments)).toBe(10);
  expect(MEASURES.refused(moments)).toBe(2);
});

test('what a service has not counted yet is none, what is counted elsewhere is unknown', () => {
  expect(MEASURES.storeFailures({ now: LATER })).toBe(0);
  expect(MEASURES.stalls({ now: LATER })).toBeNull();
  expect(MEASURES.dead({ now: LATER })).toBeNull();
});

test('an audit that does not go on by itself is unknown', () => {
  expect(MEASURES.auditLag({ now: LATER })).toBeNull();
  const audited = new Scrape('audit_lag_seconds 131.5\naudit_minutes_total 7', 3000);
  expect(MEASURES.auditLag({ now: audited })).toBe(131.5);
  expect(MEASURES.auditMissing({ now: audited })).toBe(0);
});
