import '@packetboat/ui/tokens.css';

import { chooseTheme, chosenTheme } from '@packetboat/ui';
import { mount } from 'svelte';

import Console from './Console.svelte';

chooseTheme(chosenTheme());

const target = document.getElementById('app');
if (target) mount(Console, { target });
