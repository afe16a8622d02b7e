package android.widget;

import android.content.Context;
import android.text.SpannableString;
import android.view.View;
import java.awt.Color;
import java.awt.Font;
import java.awt.FontMetrics;
import java.awt.Graphics2D;
import java.awt.RenderingHints;
import java.awt.image.BufferedImage;
import java.util.ArrayList;
import java.util.List;

public class TextView extends View {
    private static final Graphics2D SURFACE =
            new BufferedImage(1, 1, BufferedImage.TYPE_INT_RGB).createGraphics();

    protected CharSequence text = "";
    protected int color;
    private float size = 14;
    private int labelFor;
    private final List<int[]> lines = new ArrayList<int[]>();

    public TextView(Context context) {
        super(context);
    }

    public void setText(CharSequence text) {
        this.text = text;
    }

    public final void setText(int id) {
        setText(getContext().getString(id));
    }

    public CharSequence getText() {
        return text;
    }

    /** The text size in sp. */
    public void setTextSize(float size) {
        this.size = size;
    }

    public void setTextColor(int color) {
        this.color = color;
    }

    public void setTextIsSelectable(boolean selectable) {
    }

    public void setAllCaps(boolean caps) {
    }

    public void setLabelFor(int id) {
        labelFor = id;
    }

    public int fakeLabelFor() {
        return labelFor;
    }

    public int fakeColor() {
        return color;
    }

    /** Returns the text as the screen shows it. */
    protected String shown() {
        return text.toString();
    }

    /** Returns the width of what stands left of the text, such as the box of a check box. */
    protected int indent() {
        return 0;
    }

    private FontMetrics metrics() {
        float pixels = size * getContext().getResources().getDisplayMetrics().scaledDensity;
        return SURFACE.getFontMetrics(new Font(Font.SANS_SERIF, Font.PLAIN, Math.round(pixels)));
    }

    @Override
    public void fakeLayout(int available, boolean fill, int exactly) {
        FontMetrics metrics = metrics();
        int around = 2 * paddingX + indent();
        wrap(metrics, available - around);
        int longest = 0;
        for (int[] line : lines) {
            longest = Math.max(longest, metrics.stringWidth(shown().substring(line[0], line[1])));
        }
        width = fill ? available : Math.min(available, Math.max(minimumWidth, longest + around));
        height = exactly >= 0 ? exactly
                : Math.max(minimumHeight, lines.size() * metrics.getHeight() + 2 * paddingY);
    }

    /** Breaks lines between words, and inside a word only if it is wider than the view. */
    private void wrap(FontMetrics metrics, int available) {
        String all = shown();
        lines.clear();
        int start = 0;
        int lastSpace = -1;
        for (int i = 0; i < all.length(); i++) {
            if (all.charAt(i) == '\n') {
                lines.add(new int[] {start, i});
                start = i + 1;
                lastSpace = -1;
            } else if (!isOneLine() && metrics.stringWidth(all.substring(start, i + 1)) > available && i > start
                    && all.charAt(i) != ' ') {
                int end = lastSpace > start ? lastSpace : i;
                lines.add(new int[] {start, end});
                start = lastSpace > start ? lastSpace + 1 : i;
                lastSpace = -1;
            }
            if (all.charAt(i) == ' ') {
                lastSpace = i;
            }
        }
        lines.add(new int[] {start, all.length()});
    }

    /** Words that were broken or cut because the view is too narrow for them, after fakeLayout. */
    public List<String> fakeBroken() {
        List<String> broken = new ArrayList<String>();
        FontMetrics metrics = metrics();
        for (String word : isOneLine() ? new String[] {shown()} : shown().split("\\s+")) {
            if (metrics.stringWidth(word) > width - 2 * paddingX - indent()) {
                broken.add(word);
            }
        }
        if (height < lines.size() * metrics.getHeight()) {
            broken.add(shown());
        }
        return broken;
    }

    @Override
    public void fakeDraw(Graphics2D on) {
        super.fakeDraw(on);
        on.setRenderingHint(RenderingHints.KEY_TEXT_ANTIALIASING,
                RenderingHints.VALUE_TEXT_ANTIALIAS_ON);
        on.clipRect(0, 0, width, height);
        FontMetrics metrics = metrics();
        on.setFont(metrics.getFont());
        int top = Math.max(paddingY, (height - lines.size() * metrics.getHeight()) / 2);
        for (int i = 0; i < lines.size(); i++) {
            drawLine(on, metrics, lines.get(i), top + i * metrics.getHeight() + metrics.getAscent());
        }
    }

    private void drawLine(Graphics2D on, FontMetrics metrics, int[] line, int baseline) {
        int x = paddingX + indent() + centred(metrics, line);
        for (int from = line[0]; from < line[1];) {
            int shade = shade(from);
            int to = from + 1;
            while (to < line[1] && shade(to) == shade) {
                to++;
            }
            String piece = shown().substring(from, to);
            on.setColor(new Color(shade));
            on.drawString(piece, x, baseline);
            x += metrics.stringWidth(piece);
            from = to;
        }
    }

    /** Returns true if lines are not broken, so that the text is cut at the end of the view. */
    protected boolean isOneLine() {
        return false;
    }

    /** Returns by how much a line is moved to the middle; only buttons do that. */
    protected int centred(FontMetrics metrics, int[] line) {
        return 0;
    }

    /** Returns the colour of one character. */
    protected int shade(int position) {
        if (text instanceof SpannableString) {
            for (int[] shade : ((SpannableString) text).fakeShades()) {
                if (position >= shade[0] && position < shade[1]) {
                    return shade[2];
                }
            }
        }
        return color;
    }
}
