import { expect, test } from 'vitest';

import { lacking, type Operator } from './operator';

const VIEWER: Operator = { name: 'vera', roles: ['view'], signed_in: true };

test('a role that is missing is said with the name', () => {
  expect(lacking(VIEWER, 'view')).toBeUndefined();
  expect(lacking(VIEWER, 'redrive')).toBe('vera lacks the role “redrive”');
  expect(lacking(VIEWER, 'view_body')).toBe('vera lacks the role “view-body”');
});

test('where nobody is known the server decides', () => {
  expect(lacking(undefined, 'discard')).toBeUndefined();
});
