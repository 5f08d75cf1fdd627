from bottomless_server.manifest.core.clock_trust import *
MIN, HOUR, DAY = 60_000, 3_600_000, 86_400_000
ALONE = Others(None, 0)
WALL = 1_750_000_000_000
# a step that was right (VM paused for 6 h, directory as store); the process restarts once a day, a bit earlier than STAND_MS
known = Known("boot", WALL, True); up = 0; n = 0
trust = None
for hour in range(0, 24 * 60):
    if hour % 23 == 0: trust = ClockTrust("boot", known)
    d = trust.look(WALL + 6 * HOUR + hour * HOUR, hour * HOUR, ALONE); known = trust.known
print("restart each 23 h: doubt after 60 days:", d)
# many steps of 4 min 50, 10 min apart, one machine: no doubt ever
trust = ClockTrust("boot", Known("boot", WALL, True)); doubts = set(); ahead = 0; el = 0
for step in range(2000):
    ahead += 290_000
    for _ in range(11):
        el += MIN
        doubts.add(trust.look(WALL + el + ahead, el, ALONE))
print("2000 steps of 4:50 each 11 min:", doubts, "believed ahead by", (trust.earliest(WALL + el + ahead, el, ALONE) - WALL - el) / DAY, "days after", el / DAY)
# clock that is set by 2 s every 9 min since a start of the machine (VM tools, ntpdate in cron */5)
trust = ClockTrust("boot2", Known("boot", WALL, True)); el = 0; a = 0
for k in range(24 * 60):
    el += MIN
    if k % 5 == 0: a = 2_000 - a
    d = trust.look(WALL + el + a, el, ALONE)
print("clock set by 2 s every 5 min (cron ntpdate), after a reboot, a day later:", d)
# boot id cannot be read (masked /proc): reboot after a month
trust = ClockTrust("", None)
for k in range(0, 30 * 24): trust.look(WALL + k * HOUR, k * HOUR, ALONE)
known = trust.known
t2 = ClockTrust("", known); seen = []
for k in range(0, 30): seen.append(t2.look(WALL + 720 * HOUR + k * HOUR, k * HOUR, ALONE))
print("no boot_id, reboot after 30 days: doubt for", sum(d is not None for d in seen), "h of 30;", seen[0])
