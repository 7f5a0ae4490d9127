#!/bin/bash
# bench/plot: pictures of a trajectory have their size and show the data, and bad input is refused.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

have gnuplot || skip_all "gnuplot is not installed"
plot=$PACEFS_REPO/bench/plot
PICTURES="dirty position pauses rates writers overview"

# trajectory DIRTY: two samples of one device and one writer
trajectory() {
	echo "time_s,event,bdi,nr_dirty,nr_writeback,background_thresh,dirty_limit,freerun,write_bw,avg_write_bw,dirty_rate,dirty_ratelimit,balanced_dirty_ratelimit,nr_writers,setpoint,bdi_setpoint,bdi_dirty,task_ratelimit,pos_ratio,pause,period,think,writer,spec,written"
	for t in 0.02 0.04; do
		echo "$t,global_dirty_state,,$1,100,12800,25600,19200,,,,,,,,,,,,,,,,,"
		echo "$t,bdi_dirty_ratelimit,0,,,,,,50000,49000,48000,5000,5100,1,,,,,,,,,,,"
		echo "$t,balance_dirty_pages,0,,,,,,,,,,,,22400,22400,$1,4900,0.98,40,42,-2,,,"
		echo "$t,writer_progress,0,,,,,,,,,,,,,,,,,,,,3,0,77"
	done
}

# png_size FILE: width and height as its header says
png_size() {
	[ "$(head -c 8 "$1" | od -An -tx1 | tr -d ' ')" = 89504e470d0a1a0a ] &&
		od -An -tu4 --endian=big -j16 -N8 "$1" | xargs
}

# refused TEXT: plot of bad.csv ends with 2 and TEXT, and makes nothing
refused() {
	"$plot" -o bad bad.csv 2>refused.log
	[ $? -eq 2 ] && grep -qF "$1" refused.log && [ "$(wc -l <refused.log)" = 1 ] && [ ! -e bad ]
}

trajectory 20000 >run.csv
check "pictures are made" "$plot" run.csv
for name in $PICTURES; do
	case $name in
	rates) want="1200 1120" ;;
	overview) want="1800 1680" ;;
	*) want="1200 560" ;;
	esac
	check_eq "size of $name.png" "$(png_size "run/$name.png")" "$want"
done
trajectory 5000 >other.csv
check "other data" "$plot" -o other --title run.csv other.csv
check_fails "look different" cmp -s run/dirty.png other/dirty.png
check "where they are different only" cmp -s run/pauses.png other/pauses.png

trajectory 20000 | sed 's/,0,,,,,,50000/,7,,,,,,50000/' >two.csv
sed '1d' run.csv >>two.csv
check "two devices" "$plot" two.csv
check_eq "have pictures each, but one of all dirty data" "$(find two -name '*-7.png' -printf '%f ' | wc -w) $(find two -name 'dirty*' | wc -l)" "5 1"

check "a case" env PACEFS_BUILD="$PACEFS_BUILD" "$plot" --case \
	"--writers 2 --limit 8M --device 20M --seconds 2 --warmup 1"
check_eq "is drawn" "$(png_size plots/overview.png)" "1800 1680"
"$plot" --case "--law none" >/dev/null 2>&1
check_eq "a case that the simulator refuses is" $? 2

check "a file that is not there is refused" refused "No such file"
: >bad.csv
check "an empty one" refused "no column"
head -n 1 run.csv >bad.csv
check "one without rows" refused "no row"
sed 's/,nr_writeback,/,other,/' run.csv >bad.csv
check "one without a column" refused "no column nr_writeback"
sed '4s/,40,/,forty,/' run.csv >bad.csv
check "a word for a number" refused "line 4 has 'forty' as pause"
sed '5s/,77$//' run.csv >bad.csv
check "a line that was cut off" refused "line 5 has nothing as written"
head -c 5000 /dev/urandom >bad.csv
check "no text" refused "plot: bad.csv:"
"$plot" >/dev/null 2>&1
check_eq "no argument is a mistake" $? 2
