package android.view;

import android.content.Context;
import android.graphics.drawable.Drawable;
import android.os.Looper;
import java.awt.Graphics2D;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

public class View {
    public static final int VISIBLE = 0;
    public static final int GONE = 8;
    public static final int ACCESSIBILITY_LIVE_REGION_POLITE = 1;

    /** The texts that all views have announced to screen readers. */
    public static final List<String> fakeAnnounced = new ArrayList<String>();

    public interface OnClickListener {
        void onClick(View view);
    }

    // Position in the parent and size, after fakeLayout.
    public int fakeLeft;
    public int fakeTop;
    protected int width;
    protected int height;
    protected int minimumWidth;
    protected int minimumHeight;
    protected int paddingX;
    protected int paddingY;
    protected Drawable background;
    protected ViewGroup.LayoutParams params;
    private final Context context;
    private OnClickListener onClick;
    private CharSequence description;
    private Object tag;
    private int id = -1;
    private int visibility = VISIBLE;
    private int liveRegion;
    private int scrollY;

    public View(Context context) {
        this.context = context;
    }

    public final Context getContext() {
        return context;
    }

    public void setId(int id) {
        this.id = id;
    }

    public int getId() {
        return id;
    }

    public void setTag(Object tag) {
        this.tag = tag;
    }

    public Object getTag() {
        return tag;
    }

    public void setVisibility(int visibility) {
        this.visibility = visibility;
    }

    public int getVisibility() {
        return visibility;
    }

    public void setMinimumWidth(int minimum) {
        minimumWidth = minimum;
    }

    public void setMinimumHeight(int minimum) {
        minimumHeight = minimum;
    }

    public void setPadding(int left, int top, int right, int bottom) {
        paddingX = left;
        paddingY = top;
    }

    public void setBackground(Drawable background) {
        this.background = background;
    }

    public void setOnClickListener(OnClickListener listener) {
        onClick = listener;
    }

    public void setContentDescription(CharSequence description) {
        this.description = description;
    }

    public CharSequence getContentDescription() {
        return description;
    }

    public void setAccessibilityLiveRegion(int mode) {
        liveRegion = mode;
    }

    public int getAccessibilityLiveRegion() {
        return liveRegion;
    }

    public void announceForAccessibility(CharSequence text) {
        fakeAnnounced.add(text.toString());
    }

    public boolean post(Runnable task) {
        Looper.getMainLooper().fakePost(task);
        return true;
    }

    public void scrollTo(int x, int y) {
        scrollY = y;
    }

    public final int getScrollY() {
        return scrollY;
    }

    public final int getWidth() {
        return width;
    }

    public final int getHeight() {
        return height;
    }

    public ViewGroup.LayoutParams fakeParams() {
        return params;
    }

    /** Clicks the view, as a finger does. */
    public void fakeClick() {
        if (onClick == null) {
            throw new AssertionError("nothing happens at a touch of " + this);
        }
        onClick.onClick(this);
    }

    public boolean fakeIsTouchable() {
        return onClick != null;
    }

    /** Returns this view or the child with that id, or null. */
    public View fakeFind(int wanted) {
        return id == wanted ? this : null;
    }

    /** Adds all visible views in here to the list, this one first. */
    public void fakeCollect(List<View> into) {
        if (visibility == VISIBLE) {
            into.add(this);
        }
    }

    /** Saves what the user has entered if the view has an id, as Android does. */
    public void fakeSave(Map<Integer, Object> into) {
    }

    public void fakeRestore(Map<Integer, Object> from) {
    }

    /**
     * Computes the view's size.
     *
     * @param available the available width
     * @param fill whether to take all of it
     * @param exactly the height of the view, or -1 for the height that its content needs
     */
    public void fakeLayout(int available, boolean fill, int exactly) {
        width = fill ? available : Math.min(available, minimumWidth);
        height = exactly >= 0 ? exactly : minimumHeight;
    }

    /** Draws on a surface whose origin is the view's top left corner. */
    public void fakeDraw(Graphics2D on) {
        if (background != null) {
            background.fakeDraw(on, width, height);
        }
    }

    /** Converts dp to pixels. */
    protected int dp(int dp) {
        return Math.round(dp * context.getResources().getDisplayMetrics().density);
    }
}
