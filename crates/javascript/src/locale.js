// Locale functions with CouchDB's results, in English: strings compare by the collation of views, digits are grouped
// by three, dates have the US format. Locales and options are ignored.
{
  const { collate } = globalThis;
  delete globalThis.collate;
  const { defineProperty } = Object;
  const { prototype: dates } = Date;
  const RangeErrorOf = RangeError;
  const TypeErrorOf = TypeError;
  const text = String;
  const uncurry = (f) => f.call.bind(f);
  const [indexOf, slice, padEnd, repeat] = [uncurry(''.indexOf), uncurry(''.slice), uncurry(''.padEnd), uncurry(''.repeat)];
  const wellFormed = uncurry(''.toWellFormed);
  const valueOf = uncurry(Number.prototype.valueOf);
  const [getTime, offsetOf] = [uncurry(dates.getTime), uncurry(dates.getTimezoneOffset)];
  const [year, month, day] = [uncurry(dates.getFullYear), uncurry(dates.getMonth), uncurry(dates.getDate)];
  const [hours, minutes, seconds] = [uncurry(dates.getHours), uncurry(dates.getMinutes), uncurry(dates.getSeconds)];
  const [wholeText, timeText] = [uncurry(dates.toString), uncurry(dates.toTimeString)];
  const put = (prototype, functions) => {
    for (const name of Object.keys(functions)) {
      defineProperty(prototype, name, { value: functions[name], writable: true, configurable: true });
    }
  };

  // The comparison does not check the clock, which is checked after some hundred calls.
  const CHARACTERS_MAX = 4e4;
  put(String.prototype, {
    localeCompare(other) {
      if (this === undefined || this === null) throw new TypeErrorOf('localeCompare of nothing');
      // Destructuring would use an iterator that the function may have replaced.
      const a = text(this);
      const b = text(other);
      if (a === b) return 0;
      if (a.length + b.length > CHARACTERS_MAX) throw new RangeErrorOf('too much to compare');
      return collate(wellFormed(a), wellFormed(b));
    },
  });

  // Splits the digits of a positive number at its decimal point.
  const digitsOf = (shortest) => {
    const e = indexOf(shortest, 'e');
    const [mantissa, exponent] = e < 0 ? [shortest, 0] : [slice(shortest, 0, e), +slice(shortest, e + 1)];
    const point = indexOf(mantissa, '.');
    let whole = point < 0 ? mantissa : slice(mantissa, 0, point);
    let rest = point < 0 ? '' : slice(mantissa, point + 1);
    if (exponent > 0) {
      rest = padEnd(rest, exponent, '0');
      whole += slice(rest, 0, exponent);
      rest = slice(rest, exponent);
    } else if (exponent < 0) {
      rest = repeat('0', -exponent - whole.length) + whole + rest;
      whole = '0';
    }
    return [whole, rest];
  };
  // Adds one to the last digit.
  const next = (digits) => {
    for (let at = digits.length - 1, end = ''; at >= 0; at--, end += '0') {
      if (digits[at] !== '9') return slice(digits, 0, at) + (+digits[at] + 1) + end;
    }
    return '1' + repeat('0', digits.length);
  };
  const FRACTION_DIGITS = 3;
  put(Number.prototype, {
    toLocaleString() {
      const value = valueOf(this);
      if (value !== value) return 'NaN';
      const sign = value < 0 || (value === 0 && 1 / value < 0) ? '-' : '';
      const size = value < 0 ? -value : value;
      if (size === Infinity) return `${sign}∞`;
      let [whole, rest] = digitsOf(text(size));
      const isUp = rest.length > FRACTION_DIGITS && rest[FRACTION_DIGITS] >= '5';
      rest = padEnd(slice(rest, 0, FRACTION_DIGITS), FRACTION_DIGITS, '0');
      if (isUp) {
        const all = next(whole + rest);
        whole = slice(all, 0, all.length - FRACTION_DIGITS);
        rest = slice(all, all.length - FRACTION_DIGITS);
      }
      while (rest !== '' && rest[rest.length - 1] === '0') rest = slice(rest, 0, rest.length - 1);
      let grouped = '';
      while (whole.length > 3) {
        grouped = `,${slice(whole, whole.length - 3)}${grouped}`;
        whole = slice(whole, 0, whole.length - 3);
      }
      return `${sign}${whole}${grouped}${rest === '' ? '' : `.${rest}`}`;
    },
  });

  const two = (number) => (number < 10 ? `0${number}` : `${number}`);
  const dateOf = (date) => `${month(date) + 1}/${day(date)}/${year(date)}`;
  const timeOf = (date) => {
    const hour = hours(date);
    return `${hour % 12 === 0 ? 12 : hour % 12}:${two(minutes(date))}:${two(seconds(date))} ${hour < 12 ? 'AM' : 'PM'}`;
  };
  const shown = (date, show) => (getTime(date) !== getTime(date) ? 'Invalid Date' : show());
  const withZone = (date, written) => (offsetOf(date) === 0 && getTime(date) === getTime(date) ? `${written} (Coordinated Universal Time)` : written);
  put(dates, {
    toLocaleString() {
      return shown(this, () => `${dateOf(this)}, ${timeOf(this)}`);
    },
    toLocaleDateString() {
      return shown(this, () => dateOf(this));
    },
    toLocaleTimeString() {
      return shown(this, () => timeOf(this));
    },
    toString() {
      return withZone(this, wholeText(this));
    },
    toTimeString() {
      return withZone(this, timeText(this));
    },
  });
}
