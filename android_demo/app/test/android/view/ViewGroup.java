package android.view;

import android.content.Context;

public abstract class ViewGroup extends View {
    public ViewGroup(Context context) { super(context); }

    public static class LayoutParams {
    }

    public void addView(View child) { children.add(child); }
    public void addView(View child, LayoutParams params) { children.add(child); }
    public void removeViews(int start, int count) { children.subList(start, start + count).clear(); }
    public void removeAllViews() { children.clear(); }
    public int getChildCount() { return children.size(); }
    public View getChildAt(int index) { return children.get(index); }
}
