"""What the machine can do at best, measured: the bounds that speeds are shares of (``csrc/probe.cpp``)."""

from dataclasses import dataclass, field

PASSES = 9


@dataclass
class Bounds:
    """Upper bounds for ``threads`` threads; each is the best of short passes, since it is a bound."""

    threads: int
    _bandwidths: dict[int, float] = field(default_factory=dict)
    _peaks: dict[bool, float] = field(default_factory=dict)

    def bandwidth(self, footprint: int) -> float:
        """Bytes a second when ``footprint`` bytes are read over and over; measured once per size, to about 6 %."""
        step = 1 << max(footprint.bit_length() - 5, 20)  # one bucket per sixteenth of the leading power of two
        size = max(footprint // step, 1) * step
        if size not in self._bandwidths:
            self._bandwidths[size] = self._read(size)
        return self._bandwidths[size]

    def peak(self, *, int8: bool) -> float:
        """Operations a second (a multiply-add is two): int8 dot products, or float32."""
        if int8 not in self._peaks:
            self._peaks[int8] = self._multiply(int8)
        return self._peaks[int8]

    def renew(self) -> None:
        """Measures again: peaks now, of which the best ever stays, and bandwidths when they are next asked for.

        A bandwidth is of its moment: the cores of a virtual machine share caches and links to memory with each other
        and with strangers, as their host places them, so that it may double or halve within seconds.
        """
        self._bandwidths.clear()
        self._peaks = {int8: max(known, self._multiply(int8)) for int8, known in self._peaks.items()}

    def seconds(self, bytes_read: float, int8_ops: float, fp32_ops: float, footprint: int | None = None) -> float:
        """The floor: the time to read so many bytes or to do so many operations, whichever is longer.

        The bytes are read over and over, by themselves or as a part of ``footprint`` bytes.
        """
        maths = fp32_ops / self.peak(int8=False) if fp32_ops else 0.0
        if int8_ops:
            maths += int8_ops / self.peak(int8=True)
        reading = bytes_read / self.bandwidth(footprint or int(bytes_read)) if bytes_read else 0.0
        return max(reading, maths)

    def _read(self, size: int) -> float:
        from trimaran import _probe

        return size / min(_probe.read_seconds(size, self.threads, PASSES))

    def _multiply(self, int8: bool) -> float:
        from trimaran import _probe

        return max(_probe.multiply_rate(int8, self.threads, PASSES))
