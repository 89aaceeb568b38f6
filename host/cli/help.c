/* help.c: prints the table of options for people: two columns, within 98 characters. */
#include <string.h>

#include "host/cli/options.h"

#define WIDTH 98
#define HELP_COLUMN 34

/* Writes words so that no line passes WIDTH; `column` is where the cursor stands, `indent` where lines begin.
 */
static void wrap(FILE *to, const char *text, int column, int indent)
{
    bool first = true;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (!first && column + 1 + word > WIDTH) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
            first = true;
        }
        column += fprintf(to, "%s%.*s", first ? "" : " ", word, text);
        first = false;
        text += word;
        text += *text == ' ';
    }
    fputc('\n', to);
}

static void print_row(FILE *to, const struct option_row *r)
{
    char left[80] = "";
    snprintf(left, sizeof left, "  %c%c%c --%s%s%s", r->letter ? '-' : ' ', r->letter ? r->letter : ' ',
             r->letter ? ',' : ' ', r->name, r->argument ? " " : "", r->argument ? r->argument : "");
    int column = fprintf(to, "%s", left);
    if (column + 2 > HELP_COLUMN) {
        fputc('\n', to);
        column = 0;
    }
    fprintf(to, "%*s", HELP_COLUMN - column, "");
    wrap(to, r->help, HELP_COLUMN, HELP_COLUMN);
}

static void print_options(FILE *to, enum command command)
{
    const char *heading = NULL, *printed = NULL;
    for (size_t i = 0; i < options__rows; i++) {
        const struct option_row *r = &options__table[i];
        if (r->heading) heading = r->heading;
        if (!(r->commands & command)) continue;
        if (heading != printed) fprintf(to, "\n%s:\n", heading);
        printed = heading;
        print_row(to, r);
    }
}

static void print_overview(FILE *to)
{
    fputs("duckd answers with DeepSeek-V3.2-class models whose experts are computed by a flock of ducks.\n\n"
          "usage: duckd COMMAND [options]\n\ncommands:\n",
          to);
    for (size_t i = 0; i < options__command_count; i++) {
        fprintf(to, "  %-10s %s\n", options__commands[i].name, options__commands[i].brief);
    }
    fputs("\nduckd COMMAND --help and duckd help COMMAND explain a command with all its options; "
          "duckd --version\nprints the version. "
          "Results go to stdout, everything else to stderr.\n"
          "Exit status: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C.\n\n"
          "try: duckd generate -p \"What is a duck?\"\n",
          to);
}

void options_help(FILE *to, enum command command)
{
    if (command == COMMAND_NONE) {
        print_overview(to);
        return;
    }
    for (size_t i = 0; i < options__command_count; i++) {
        const struct command_row *c = &options__commands[i];
        if (c->command != command) continue;
        char usage[200];
        int column = fprintf(to, "usage: duckd %s ", c->name);
        snprintf(usage, sizeof usage, "%s%s[options]", c->usage, *c->usage ? " " : "");
        wrap(to, usage, column, column);
        fputc('\n', to);
        wrap(to, c->text, 0, 0);
    }
    print_options(to, command);
}
